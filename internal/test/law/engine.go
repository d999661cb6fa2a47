package law

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

var errTooMuch = errors.New("too much at once")

// engines is a sequence of calls of an engine, and of other programs.
type engines struct {
	*instances
	states  *randstate.Source
	state   servicemodel.State // the base of the next one
	cfg     dataplane.Config
	denied  bool
	at      int
	backend *backend
	engine  *dataplane.Engine
	stop    func() // ends a Run, if one is under way

	wants    *servicemodel.State // what the engine holds, if it wants a state
	accepted servicemodel.State
	expects  *servicemodel.Table   // what the kernel is to hold
	holds    *servicemodel.State   // the state of that, nil for nothing
	holder   dataplane.Config      // of the engine that made it
	passed   []*servicemodel.Table // what it was to hold since the last step, nil for nothing
	foreign  int                   // counts foreign commits
	unknown  bool                  // nothing is known about the kernel until the next apply
	growing  bool                  // no engine lets the weights grow that do not have their whole
	problem  string
}

func beginEngine(t *testing.T, seed uint64, m *Machine) sequence {
	r := rand.New(rand.NewPCG(seed, 1<<40))
	l := &engines{instances: &instances{Machine: m, t: t}, states: randstate.New(states(), r),
		stop: func() {}}
	l.state = l.states.State()
	l.cfg = dataplane.Config{KeepRefused: r.IntN(2) == 0, LeaveOutEndpoints: r.IntN(3) == 0,
		Approve: func(context.Context, *dataplane.Preview) error {
			if l.denied {
				return errTooMuch
			}
			return nil
		}}
	l.start()
	return l
}

// start creates a new engine, like a program that starts.
func (l *engines) start() {
	l.stop()
	if l.engine != nil && !l.engine.Status().Settle.IsZero() {
		l.growing = true // until an engine holds the state again
	}
	l.backend = l.opened(l.at)
	l.cfg.Accepted = l.accepted
	l.engine = dataplane.New(l.backend, &l.cfg)
	l.wants = nil
}

// opened returns a backend for the engine.
func (l *engines) opened(at int) *backend {
	b := &backend{Backend: l.process(at)}
	if l.TouchedOnce {
		b.foreign = &l.foreign
	}
	return b
}

// touch commits outside the instance.
func (l *engines) touch() {
	l.foreign++
	l.Touch(l.at)
}

// other returns an engine of another process.
func (l *engines) other(cfg *dataplane.Config) *dataplane.Engine {
	return dataplane.New(&backend{Backend: l.process(l.at)}, cfg)
}

// expect records that the kernel must hold the table of an engine for a state.
func (l *engines) expect(s servicemodel.State, cfg dataplane.Config) {
	l.nothing()
	l.expects, l.holds, l.holder = l.of(s, cfg), &s, cfg
	l.passed = append(l.passed, l.expects)
}

// nothing records that the kernel must hold nothing.
func (l *engines) nothing() {
	l.expects, l.holds, l.unknown = nil, nil, false
}

// knowing returns the configuration of the engine with what it has accepted.
func (l *engines) knowing() dataplane.Config {
	cfg := l.cfg
	cfg.Accepted = l.accepted
	return cfg
}

// applied records that the engine holds a state, and checks the result of its apply.
func (l *engines) applied(s servicemodel.State, r *dataplane.Result) {
	before, served := l.accepted, map[servicemodel.Name]bool{}
	for p := range l.expects.Pools() {
		served[p.ID.Service.Name] = true
	}
	l.expect(s, l.knowing())
	l.wants, l.accepted, l.growing = &s, r.Accepted, false
	if again := l.of(s, l.knowing()); !again.Arrange(l.expects).Equal(l.expects) {
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

// next returns another state.
func (l *engines) next() servicemodel.State {
	l.state = l.vary(l.states, l.state)
	return l.state
}

func (l *engines) step(r *rand.Rand) string {
	l.states = l.states.With(r)
	l.passed = []*servicemodel.Table{l.expects}
	for range r.IntN(3) {
		l.next()
	}
	ctx := l.t.Context()
	switch r.IntN(13) {
	case 0, 1, 2:
		return l.apply(ctx, r)
	case 3:
		return l.set()
	case 4, 5:
		return l.changes(ctx, r)
	case 6:
		return l.change(ctx, r)
	case 7:
		if _, err := l.engine.Cleanup(ctx); err != nil {
			l.problem = err.Error()
		}
		l.wants, l.passed = nil, append(l.passed, nil)
		l.nothing()
		return "cleanup"
	case 8:
		l.start()
		return "restart"
	case 9, 10:
		return l.harm(ctx, r)
	case 11:
		return l.settle(ctx, r)
	}

	if l.engine.Status().Running {
		l.stop()
		return "end of Run"
	}

	l.run()
	return "run"
}

// settle lets some time pass.
func (l *engines) settle(ctx context.Context, r *rand.Rand) string {
	d := time.Duration(r.IntN(6000)) * time.Millisecond
	time.Sleep(d)
	before := l.engine.Status().Totals.Applies
	_, _ = l.engine.Settle(ctx)
	if l.wants != nil && l.engine.Status().Totals.Applies > before { // a step of a slow start
		l.expect(*l.wants, l.knowing())
	}
	return "settle after " + d.String()
}

func (l *engines) apply(ctx context.Context, r *rand.Rand) string {
	s := l.next()
	name, end := "apply", func() {}
	switch r.IntN(6) {
	case 0:
		name, l.denied = "apply, which is denied", true
	case 1:
		name, l.backend.fails = "apply, and the commit fails", true
	case 2:
		name, l.backend.fails, l.backend.lost = "apply, and its answer is lost", true, true
	case 3:
		if l.Fault != nil {
			name, end = l.Fault(r)
			name = "apply, and " + name
		}
	}

	res, err := l.engine.Apply(ctx, s)
	end()
	unknown := !l.denied && !(l.backend.fails && !l.backend.lost)
	l.denied, l.backend.fails, l.backend.lost = false, false, false
	if err == nil {
		l.applied(s, res)
	} else if l.engine.Status().Running { // Run tries it again
		l.rest(s)
	} else {
		l.wants, l.unknown = &s, l.unknown || unknown
	}

	return name
}

// rest waits until Run holds a state.
func (l *engines) rest(s servicemodel.State) {
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

func (l *engines) set() string {
	s := l.next()
	if l.engine.Status().Running {
		l.rest(s)
		return "set, and Run"
	}

	l.engine.Set(s)
	l.wants = &s
	return "set"
}

// changes plans with one engine, and applies the stored changes with another engine, or with the
// same engine.
func (l *engines) changes(ctx context.Context, r *rand.Rand) string {
	s := l.next()
	planner := l.other(nil)
	if r.IntN(3) == 0 && !l.cfg.KeepRefused && !l.cfg.LeaveOutEndpoints {
		planner = l.engine
	}
	p, err := planner.Plan(ctx, s)
	if err != nil {
		l.problem = "plan: " + err.Error()
		return "plan"
	}

	changes := &servicemodel.ChangeSet{}
	must.OK(0, json.Unmarshal(must.OK(json.Marshal(p.Changes))(l.t), changes))(l.t)
	l.expect(s, dataplane.Config{})
	l.growing = false
	name := "plan, and apply the changes with "
	if r.IntN(2) == 0 {
		name += "this engine"
		_, err = l.engine.ApplyChanges(ctx, changes)
		l.wants = nil
	} else {
		name += "another engine"
		_, err = l.other(nil).ApplyChanges(ctx, changes)
	}

	if err != nil {
		l.problem = "apply changes: " + err.Error()
	}
	if l.engine.Status().Running && l.wants != nil {
		l.rest(*l.wants)
	}
	return name
}

// change switches to the other instance, or to another backend of the same instance.
func (l *engines) change(ctx context.Context, r *rand.Rand) string {
	to := l.at
	if r.IntN(3) > 0 {
		to = 1 - l.at
	}
	b, lose := l.opened(to), r.IntN(2) == 0
	name := fmt.Sprintf("switch to instance %d, lose %t", to, lose)
	change := l.engine.Switch
	if lose {
		change = l.engine.ForceSwitch
	}
	res, err := change(ctx, b)
	if err != nil {
		return name + ": " + err.Error()
	}
	l.at, l.backend = to, b
	l.passed = append(l.passed, nil) // the tables of an instance go
	l.nothing()
	if l.wants != nil {
		l.applied(*l.wants, res)
	}
	if o := l.observe(1 - l.at); o.Table.Len() > 0 || len(o.Drift) > 0 {
		l.problem = fmt.Sprint("the other instance still has services: ", o.Drift)
	}
	return name
}

// harm damages the kernel, and lets the engine repair it: at once, or after a suspicion.
func (l *engines) harm(ctx context.Context, r *rand.Rand) string {
	harms := l.Harms
	how := []string{", resync, apply", ", apply, and later again",
		", the ration of readings being used up before"}[r.IntN(3)]
	if strings.HasSuffix(how, "before") && l.wants != nil && !l.engine.Status().Running {
		for range 5 {
			l.touch()
			if res, err := l.engine.Apply(ctx, *l.wants); err == nil {
				l.applied(*l.wants, res)
			}
		}
	}

	name := "another engine applies a state"
	if i := r.IntN(len(harms) + 1); i < len(harms) {
		name = harms[i].Name
		l.foreign++
		harms[i].Do(l.at, r)
		l.unknown = true
	} else {
		s, cfg := l.next(), l.knowing()
		must.OK(l.other(&cfg).Apply(ctx, s))(l.t)
		l.expect(s, cfg)
		l.growing = true // the other engine has begun the slow starts, and takes no further step
	}

	if l.wants == nil {
		return name
	}
	s := *l.wants
	if l.engine.Status().Running {
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		l.expect(s, l.knowing())
		return name + ", and Run"
	}

	if strings.HasSuffix(how, "apply") {
		l.engine.Resync()
	} else { // a suspicion is enough, as soon as the ration allows a reading
		if res, err := l.engine.Apply(ctx, s); err == nil {
			l.applied(s, res)
		}
		time.Sleep(time.Hour)
	}

	res, err := l.engine.Apply(ctx, s)
	if err != nil {
		l.problem = err.Error()
		return name + how
	}

	l.applied(s, res)
	return name + how
}

func (l *engines) run() {
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

func (l *engines) end() {
	l.stop()
	l.close()
}

func (l *engines) wrong() string {
	synctest.Wait()
	if l.problem != "" {
		return l.problem
	}
	if lost := l.lost(); lost != "" || l.unknown {
		return lost
	}
	o := l.observe(l.at)
	if len(o.Drift) > 0 {
		return fmt.Sprintf("the kernel has drift: %q", o.Drift)
	}
	st := l.engine.Status()
	l.growing = l.growing || st.Pending()
	grows := l.growing || !st.Settle.IsZero()
	if lacks := lacking(o.Table, l.expects, grows); lacks != "" {
		return "the kernel lacks:\n" + lacks
	}
	if l.holds == nil {
		return ""
	}
	b := must.OK(l.Open(l.at))(l.t)
	defer b.Close()
	p := must.OK(dataplane.New(&backend{Backend: b}, &l.holder).Plan(l.t.Context(), *l.holds))(l.t)
	lacks := lacking(p.Changes.Old, p.Changes.New, grows)
	if lacks != "" || len(p.Drift) > 0 || p.Changes.Empty() && p.Plan.Stats().Messages > 0 {
		return fmt.Sprintf("a new engine plans, drift %q:\n%s\n%s", p.Drift, lacks, p.Plan)
	}
	return ""
}

// lacking names the objects that a table lacks. If endpoints grow, it does not compare weights.
func lacking(k, want *servicemodel.Table, grows bool) string {
	want = want.Arrange(k)
	if grows {
		k, want = whole(k), whole(want)
	}
	c := servicemodel.Diff(k, want)
	c.Health = nil
	if c.Empty() {
		return ""
	}
	return c.String()
}

// lost names the user's rules that should have stayed and are gone.
func (l *engines) lost() string {
	if l.Users == nil {
		return ""
	}
	served := map[servicemodel.Family]bool{servicemodel.IPv4: true, servicemodel.IPv6: true}
	for _, t := range l.passed {
		has := map[servicemodel.Family]bool{}
		for f := range t.Frontends() {
			has[f.Key.Family()] = true
		}
		for f := range served {
			served[f] = served[f] && has[f]
		}
	}

	return l.Users.Lost(l.at, served)
}
