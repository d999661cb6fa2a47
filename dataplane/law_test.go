package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// This file holds the law that what was accepted keeps its meaning over any later call, time and
// commit: after any sequence of calls, the kernel holds what a new engine would make of the same
// state on a new backend, except for the order of slots and for weights that still grow.

// sequences is how many sequences of calls each law tries.
func sequences(t *testing.T) (from, n uint64) {
	t.Helper()
	from, n = 0, 1000
	if s := os.Getenv("KERNLB_TEST_SEQUENCES"); s != "" {
		n = ok(strconv.ParseUint(s, 10, 32))(t)
	}
	if s := os.Getenv("KERNLB_TEST_SEED"); s != "" {
		from, n = ok(strconv.ParseUint(s, 10, 64))(t), 1
	}
	return from, n
}

// lawful runs sequences of steps, each in a bubble of its own. step makes a random step, names it,
// and returns what is wrong afterwards. A sequence that fails is repeated without those steps that
// it does not need to fail.
func lawful(t *testing.T, begin func(t *testing.T, seed uint64) lawSequence) {
	t.Helper()
	t.Parallel()
	from, n := sequences(t)
	for seed := from; seed < from+n; seed++ {
		wrong, _ := lawRun(t, seed, nil, begin)
		if wrong == "" {
			continue
		}
		skip := map[int]bool{}
		for i := range lawSteps {
			skip[i] = true
			if w, _ := lawRun(t, seed, skip, begin); w == "" {
				delete(skip, i)
			}
		}
		wrong, steps := lawRun(t, seed, skip, begin)
		t.Fatalf("KERNLB_TEST_SEED=%d: after\n%s\n%s", seed, strings.Join(steps, "\n"), wrong)
	}
}

const lawSteps = 14

// lawSequence is a sequence of calls.
type lawSequence interface {
	// step makes a step, and returns its name. r makes all choices of the step.
	step(r *rand.Rand) string
	// wrong says what is wrong after a step.
	wrong() string
	end()
}

// lawRun runs a sequence without the steps in skip, and says what is wrong after the last one.
func lawRun(t *testing.T, seed uint64, skip map[int]bool,
	begin func(t *testing.T, seed uint64) lawSequence) (wrong string, steps []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := begin(t, seed)
		defer s.end()
		for i := 0; i < lawSteps && wrong == ""; i++ {
			if !skip[i] {
				steps = append(steps, s.step(rand.New(rand.NewPCG(seed, uint64(i)))))
				wrong = s.wrong()
			}
		}
	})
	return wrong, steps
}

// lawStates are the states of a law. They use every field.
func lawStates() randstate.Config {
	c := randstate.Config{Services: 4, EndpointPorts: []uint16{8080, 8081, 9090}, Weights: true,
		Every: true, Schedulers: []servicemodel.Scheduler{"", "", "", "wrr", "wrr", "wrr", "wrr",
			"rr", "sh", "mh", "lc", "fo"}, Edit: func(s *servicemodel.Service) {
			if s.Scheduler == "wrr" { // lawRefuse limits its weights, which nearness multiplies
				s.Prefer = ""
			}
		}}
	for i := range 5 {
		c.Places = append(c.Places, randstate.Place{
			IPv4: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}),
			IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", i+1)),
			Node: []string{"node-0", "node-1", ""}[i%3], Zone: "z" + fmt.Sprint(i%2)})
	}
	return c
}

// lawRefuse is the Check of a backend that lacks a scheduler, heavy pools and direct routing.
func lawRefuse(c *servicemodel.ChangeSet) error {
	var errs []error
	refuse := func(of servicemodel.PortName, field, value string) {
		errs = append(errs, &dataplane.UnsupportedError{Backend: "memory", Service: of.Name,
			Object: "service " + of.String(), Field: field, Value: value})
	}
	for _, p := range c.Pools {
		if p.New != nil && p.New.Scheduler == servicemodel.LeastConn {
			refuse(p.New.ID.Service, dataplane.FieldScheduler, "lc")
		}
		if p.New != nil && p.New.Forwarding == servicemodel.ForwardDirect {
			refuse(p.New.ID.Service, dataplane.FieldForwarding, "direct")
		}
		sum := 0
		for i := 0; p.New != nil && i < len(p.New.Slots); i++ {
			sum += int(p.New.Slots[i].Weight)
		}
		heavy := sum > 120 || sum > 4 && sum < 20 // those with a slow start have at least 20
		if heavy && p.New.Scheduler == "wrr" {
			refuse(p.New.ID.Service, dataplane.FieldWeights, fmt.Sprint(sum))
		}
	}
	return errors.Join(errs...)
}

// lawEngine is an engine whose calls come in any order.
type lawEngine struct {
	t       *testing.T
	states  *randstate.Source
	state   servicemodel.State // the base of the next one
	cfg     dataplane.Config
	denied  bool
	kernels [2]*memory.Kernel
	at      int
	backend *memory.Backend
	engine  *dataplane.Engine
	stop    func() // ends a Run, if one is under way

	wants    *servicemodel.State // what the engine holds, if it wants a state
	accepted servicemodel.State
	expects  *servicemodel.Table // what the kernel is to hold
	growing  bool                // no engine lets the weights grow that do not have their whole
	problem  string
}

func beginLawEngine(t *testing.T, seed uint64) lawSequence {
	r := rand.New(rand.NewPCG(seed, 1<<40))
	l := &lawEngine{t: t, states: randstate.New(lawStates(), r), stop: func() {},
		kernels: [2]*memory.Kernel{{}, {}}}
	l.state = l.states.State()
	l.cfg = dataplane.Config{KeepRefused: r.IntN(2) == 0, LeaveOutEndpoints: r.IntN(3) == 0,
		Flows: &flaky{}, Approve: func(context.Context, *dataplane.Preview) error {
			if l.denied {
				return errTooMuch
			}
			return nil
		}}
	l.start()
	return l
}

func (l *lawEngine) open(at int) *memory.Backend {
	b := memory.New(l.kernels[at])
	b.Refuse(lawRefuse)
	b.HeedHints(l.cfg.LeaveOutEndpoints) // as good as any other choice
	return b
}

// start makes a new engine, as a program does that starts.
func (l *lawEngine) start() {
	l.stop()
	if l.engine != nil && !l.engine.Status().Settle.IsZero() {
		l.growing = true // until an engine holds the state again
	}
	l.backend = l.open(l.at)
	l.cfg.Accepted = l.accepted
	l.engine = dataplane.New(l.backend, &l.cfg)
	l.wants = nil
}

// of returns what a new engine makes of a state on a new backend.
func (l *lawEngine) of(s servicemodel.State, cfg dataplane.Config) *servicemodel.Table {
	b := memory.New(nil)
	b.Refuse(lawRefuse)
	cfg.Approve, cfg.Flows = nil, nil
	ok(dataplane.New(b, &cfg).Apply(l.t.Context(), s))(l.t)
	return b.Kernel().Table()
}

// applied records that the engine holds a state, with a result of its apply.
func (l *lawEngine) applied(s servicemodel.State, r *dataplane.Result) {
	before, served := l.accepted, map[servicemodel.Name]bool{}
	for p := range l.expects.Pools() {
		served[p.ID.Service.Name] = true
	}
	l.wants, l.accepted, l.growing = &s, r.Accepted, false
	cfg := l.cfg
	cfg.Accepted = before
	l.expects = l.of(s, cfg)
	cfg.Accepted = r.Accepted
	if again := l.of(s, cfg); !again.Arrange(l.expects).Equal(l.expects) {
		l.problem = fmt.Sprintf("after a restart differs: %v\n%v", r.Refused,
			servicemodel.Diff(l.expects, again.Arrange(l.expects)))
	}
	sameNode := reflect.DeepEqual(before.Node(), s.Node()) // another one needs other pools
	for _, f := range r.Refused {
		if sameNode && l.cfg.KeepRefused && before.Service(f.Service) != nil && served[f.Service] &&
			len(f.Endpoints) == 0 && !f.Kept {
			l.problem = fmt.Sprintf("%v was served, and is not kept: %v", f.Service, f.Err)
		}
	}
}

func (l *lawEngine) next() servicemodel.State {
	l.state = l.states.Change(l.state)
	return l.state
}

func (l *lawEngine) step(r *rand.Rand) string {
	l.states = l.states.With(r)
	for range r.IntN(3) {
		l.next()
	}
	ctx := l.t.Context()
	switch r.IntN(12) {
	case 0, 1, 2:
		return l.apply(ctx, r)
	case 3:
		return l.set()
	case 4, 5:
		return l.changes(ctx, r)
	case 6:
		return l.change(ctx, r)
	case 7:
		_ = errOf(l.engine.Cleanup(ctx))
		l.wants, l.expects = nil, nil
		return "cleanup"
	case 8:
		l.start()
		return "restart"
	case 9:
		return l.harm(ctx, r)
	case 10:
		d := time.Duration(r.IntN(6000)) * time.Millisecond
		time.Sleep(d)
		before := l.engine.Status().Totals.Applies
		_, _ = l.engine.Settle(ctx)
		if l.wants != nil && l.engine.Status().Totals.Applies > before { // a step of a slow start
			cfg := l.cfg
			cfg.Accepted = l.accepted
			l.expects = l.of(*l.wants, cfg)
		}
		return "settle after " + d.String()
	}
	if l.engine.Status().Running {
		l.stop()
		return "end of Run"
	}
	l.run()
	return "run"
}

func (l *lawEngine) apply(ctx context.Context, r *rand.Rand) string {
	s := l.next()
	name := "apply"
	how := r.IntN(5)
	if l.cfg.KeepRefused && how == 1 { // what was accepted before the failure is in no result
		how = 2
	}
	switch how {
	case 0:
		name, l.denied = "apply, which is denied", true
	case 1:
		name = "apply, and the commit fails"
		l.backend.Fail("commit", 1, errRefused)
	}
	res, err := l.engine.Apply(ctx, s)
	l.denied = false
	l.backend.Fail("commit", 0, nil)
	if err == nil {
		l.applied(s, res)
	} else if l.engine.Status().Running { // Run tries it again
		l.rest(s)
	} else {
		l.wants = &s
	}
	return name
}

// rest waits until Run holds a state.
func (l *lawEngine) rest(s servicemodel.State) {
	var last *dataplane.Result
	defer l.engine.Subscribe(func(_ context.Context, e dataplane.Event) {
		if a, is := e.(dataplane.Applied); is && last == nil {
			last = a.Result
		}
	})()
	l.engine.Set(s)
	time.Sleep(time.Minute)
	synctest.Wait()
	if last == nil {
		l.problem = fmt.Sprint("Run does not hold the state: ", l.engine.Status().Err)
		return
	}
	l.applied(s, last)
}

func (l *lawEngine) set() string {
	s := l.next()
	if l.engine.Status().Running {
		l.rest(s)
		return "set, and Run"
	}
	l.engine.Set(s)
	l.wants = &s
	return "set"
}

// changes plans with one engine, and applies the stored changes with another one, or with the
// engine itself.
func (l *lawEngine) changes(ctx context.Context, r *rand.Rand) string {
	s := l.next()
	planner := dataplane.New(l.open(l.at), nil)
	if r.IntN(3) == 0 && !l.cfg.KeepRefused && !l.cfg.LeaveOutEndpoints {
		planner = l.engine
	}
	p, err := planner.Plan(ctx, s)
	if err != nil {
		l.problem = "plan: " + err.Error()
		return "plan"
	}
	changes := stored(l.t, p.Changes)
	l.expects, l.growing = l.of(s, dataplane.Config{}), false
	name := "plan, and apply the changes with "
	if r.IntN(2) == 0 {
		name += "this engine"
		_, err = l.engine.ApplyChanges(ctx, changes)
		l.wants = nil
	} else {
		name += "another engine"
		_, err = dataplane.New(l.open(l.at), nil).ApplyChanges(ctx, changes)
	}
	if err != nil {
		l.problem = "apply changes: " + err.Error()
	}
	if l.engine.Status().Running && l.wants != nil {
		l.rest(*l.wants)
	}
	return name
}

func (l *lawEngine) change(ctx context.Context, r *rand.Rand) string {
	to := l.at
	if r.IntN(3) > 0 {
		to = 1 - l.at
	}
	b, lose := l.open(to), r.IntN(2) == 0
	name := fmt.Sprintf("switch to kernel %d, lose %t", to, lose)
	res, err := l.engine.Switch(ctx, b, &dataplane.SwitchOptions{LoseServices: lose})
	if err != nil {
		return name + ": " + err.Error()
	}
	l.at, l.backend = to, b
	if l.wants == nil {
		l.expects = nil
	} else {
		l.applied(*l.wants, res)
	}
	if l.kernels[1-l.at].Table().Len() > 0 {
		l.problem = "the other kernel still has services"
	}
	return name
}

// harm damages the kernel, and lets the engine repair it.
func (l *lawEngine) harm(ctx context.Context, r *rand.Rand) string {
	k := l.kernels[l.at]
	name := []string{"flush", "lose a frontend", "drift", "touch"}[r.IntN(4)]
	switch name {
	case "flush":
		k.Flush()
		l.expects = nil
	case "lose a frontend":
		for f := range k.Table().Frontends() {
			k.Lose(f.Key)
			break
		}
		l.expects = k.Table()
	case "drift":
		k.AddDrift("a chain of nobody")
	case "touch":
		k.Touch()
	}
	if l.wants == nil {
		return name
	}
	s := *l.wants
	if l.engine.Status().Running {
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		cfg := l.cfg
		cfg.Accepted = l.accepted
		l.expects = l.of(s, cfg)
		return name + ", and Run"
	}
	l.engine.Resync()
	res, err := l.engine.Apply(ctx, s)
	if err != nil {
		l.problem = err.Error()
		return name
	}
	l.applied(s, res)
	if len(k.Drift()) > 0 {
		l.problem = "drift stays"
	}
	return name + ", resync, apply"
}

func (l *lawEngine) run() {
	ctx, cancel := context.WithCancel(l.t.Context())
	ended := make(chan error, 1)
	e := l.engine
	go func() { ended <- e.Run(ctx, &dataplane.RunOptions{RetryMax: time.Second}) }()
	l.stop = func() {
		cancel()
		<-ended
		l.stop = func() {}
	}
	synctest.Wait()
	if l.wants != nil {
		l.rest(*l.wants)
	}
}

func (l *lawEngine) end() { l.stop() }

func (l *lawEngine) wrong() string {
	if l.problem != "" {
		return l.problem
	}
	synctest.Wait()
	k := l.kernels[l.at].Table()
	want := l.expects.Arrange(k)
	st := l.engine.Status()
	if l.growing = l.growing || st.Pending(); l.growing || !st.Settle.IsZero() {
		k, want = whole(k), whole(want)
	}
	c := servicemodel.Diff(k, want)
	if c.Health = nil; !c.Empty() {
		return "the kernel lacks:\n" + c.String()
	}
	return ""
}

// whole returns a table in which all endpoints have the same weight.
func whole(t *servicemodel.Table) *servicemodel.Table {
	c := t.Contents()
	c.Pools = nil
	for p := range t.Pools() {
		own := *p // tables share their pools
		own.Slots, own.Units = slices.Clone(p.Slots), nil
		for i := range own.Slots {
			own.Slots[i].Weight = 1
		}
		c.Pools = append(c.Pools, &own)
	}
	same, err := servicemodel.NewTable(c)
	if err != nil {
		panic(err)
	}
	return same
}

func TestWhatAnEngineAcceptedKeepsItsMeaning(t *testing.T) {
	lawful(t, beginLawEngine)
}
