package silence

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// story is a random sequence of events for a follower: services whose endpoints fail, and programs
// that are killed. Evidence and time are made up.
type story struct {
	t     *testing.T
	r     *rand.Rand
	now   time.Time
	state servicemodel.State
	got   servicemodel.State // what the engine would have
	dead  map[netip.AddrPort]bool
	at    string // seed and step

	*Follower
	changes []Change
	events  []event
}

// event is something that happens at a time.
type event struct {
	at time.Time
	do func()
}

// begin starts a follower that knows what an earlier one did.
func (s *story) begin(earlier []Change) {
	s.Follower = s.follower(earlier, func(st servicemodel.State) { s.got = st })
	s.cfg.Changed = func(c Change) { s.changes = append(s.changes, c) }
	s.events = nil // its look-ups and questions end with it
	s.take(s.state, s.now)
}

func (s *story) follower(earlier []Change, set func(servicemodel.State)) *Follower {
	f := &Follower{judge: newJudge(0.5), set: set}
	f.judge.remember(earlier, s.now)
	return f
}

// randomState returns two services with two ports each, which say much of what a state can say
// about the use of endpoints.
func (s *story) randomState() servicemodel.State {
	st := servicemodel.State{}.WithNode(servicemodel.Node{Name: "n1"})
	for i := range 2 {
		name := servicemodel.Name{Namespace: "default", Name: fmt.Sprintf("s%d", i)}
		svc := &servicemodel.Service{Name: name, ClusterIPs: []netip.Addr{
			netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", i+1)),
			netip.MustParseAddr(fmt.Sprintf("fd00:96::%d", i+1))},
			Ports: []servicemodel.ServicePort{
				{Name: "a", Protocol: servicemodel.TCP, Port: 80, NodePort: uint16(30000 + 2*i)},
				{Name: "b", Protocol: servicemodel.TCP, Port: 81, NodePort: uint16(30001 + 2*i)}}}
		svc.ExternalTrafficPolicy = pick(s.r, servicemodel.PolicyCluster, servicemodel.PolicyLocal)
		svc.Scheduler = pick(s.r, servicemodel.SchedulerDefault, servicemodel.LeastConn,
			servicemodel.SourceHash)
		if !svc.Scheduler.Even() {
			svc.SlowStart = pick(s.r, 0, 10*time.Second)
		}
		svc.SessionAffinity.ClientIP = svc.Scheduler == servicemodel.SchedulerDefault &&
			s.r.IntN(2) == 0
		svc.SilentEndpoints = pick(s.r, servicemodel.SilentDefault, servicemodel.SilentDefault,
			servicemodel.SilentEject, servicemodel.SilentStay)
		var eps []servicemodel.Endpoint
		for e := range s.r.IntN(7) {
			ep := servicemodel.Endpoint{Addr: netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", i, e)),
				Node: pick(s.r, "n1", "n2"), Ports: []servicemodel.EndpointPort{
					{Name: "a", Protocol: servicemodel.TCP, Port: 8080},
					{Name: "b", Protocol: servicemodel.TCP, Port: 8081}}}
			if s.r.IntN(2) == 0 {
				ep.Addr = netip.MustParseAddr(fmt.Sprintf("fd00::%d:%d", i, e))
			}
			if s.r.IntN(4) == 0 {
				ep.Condition = pick(s.r, servicemodel.NotReady, servicemodel.Serving,
					servicemodel.Terminating, servicemodel.Quiesced)
			}
			eps = append(eps, ep)
		}

		st = st.WithService(svc).WithEndpoints(name, eps)
	}

	return st
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// table resolves a state, as the engine does.
func (s *story) table(st servicemodel.State) *servicemodel.Table {
	s.t.Helper()
	t, err := servicemodel.Resolve(nil, st)
	require.NoError(s.t, err)
	return t
}

// later does something at a time.
func (s *story) later(d time.Duration, do func()) {
	e := event{s.now.Add(d), do}
	i, _ := slices.BinarySearchFunc(s.events, e.at.Add(1), func(e event, at time.Time) int {
		return e.at.Compare(at)
	})
	s.events = slices.Insert(s.events, i, e)
}

// connect makes connections of some clients to each pool that the engine has.
func (s *story) connect(clients int) {
	for pool := range s.table(s.got).Pools() {
		to := pool.Slots[s.r.IntN(len(pool.Slots))].Endpoint
		one := sample{place: place{pool.ID.Service, to}, client: client(s.r.IntN(clients)),
			began: s.now}
		s.later(quick, func() {
			one.answered = !s.dead[to]
			s.hear(one)
			if !one.answered {
				s.later(patience-quick, func() {
					one.answered, one.late = !s.dead[to], true
					s.hear(one)
				})
			}
		})
	}
}

func (s *story) hear(one sample) {
	for _, p := range first(s.decide([]sample{one}, s.now)) {
		s.later(50*time.Millisecond, func() { s.judge.heard(p, !s.dead[p.endpoint], s.now) })
	}
}

func first[T, U any](t T, _ U) T { return t }

// pass lets time pass, in steps.
func (s *story) pass(d, tick time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(tick)
		for len(s.events) > 0 && !s.events[0].at.After(s.now) {
			e := s.events[0]
			s.events = s.events[1:]
			e.do()
		}

		for _, p := range first(s.decide(nil, s.now)) {
			s.later(50*time.Millisecond, func() { s.judge.heard(p, !s.dead[p.endpoint], s.now) })
		}
	}
}

// check checks the laws.
func (s *story) check() {
	s.t.Helper()
	want, got := s.table(s.state), s.table(s.got)
	ejected := s.Ejected()
	out := map[place]bool{}
	for _, c := range ejected {
		out[place{c.Service, c.Endpoint}] = true
		require.True(s.t, c.Out)
		require.GreaterOrEqual(s.t, c.Clients, 2, "%s: never because of one client", s.at)
		svc := s.state.Service(c.Service.Name)
		require.NotEqual(s.t, servicemodel.SilentStay, svc.SilentEndpoints, s.at)
	}

	for pool := range want.Pools() {
		in, missing := map[netip.AddrPort]bool{}, 0
		if has := got.Pool(pool.ID); has != nil {
			for _, slot := range has.Slots {
				in[slot.Endpoint] = true
			}
		}
		for _, slot := range pool.Slots {
			if !in[slot.Endpoint] {
				missing++
				require.True(s.t, out[place{pool.ID.Service, slot.Endpoint}], "%s: %v of %v is "+
					"not in the table, nor in the status", s.at, slot.Endpoint, pool.ID)
			}
		}

		require.LessOrEqual(s.t, 2*missing, len(pool.Slots), "%s: %v", s.at, pool.ID)
	}

	var other servicemodel.State
	f := s.follower(ejected, func(st servicemodel.State) { other = st })
	f.take(s.state, s.now)
	require.Equal(s.t, ejected, f.Ejected(), s.at)
	require.True(s.t, servicemodel.Diff(got, s.table(other)).Empty(), "%s: the next process", s.at)
}

// Whatever fails, whatever the program wants, and whenever it is killed: at most half of each pool
// is out, never because of one client, all that is out is in the status, the next process makes the
// same table, and an ejection ends.
func TestRandomStories(t *testing.T) {
	t.Parallel()
	ejections, restarts, together := 0, 0, 0
	for seed := range uint64(20) {
		s := &story{t: t, r: rand.New(rand.NewPCG(seed, 3)), now: time.Unix(1e9, 0),
			dead: map[netip.AddrPort]bool{}}
		s.state = s.randomState()
		s.begin(nil)
		for step := range 150 {
			clients := pick(s.r, 1, 5, 50)
			switch s.r.IntN(30) {
			case 0:
				s.state = s.randomState()
				s.take(s.state, s.now)
			case 1:
				restarts++
				s.begin(s.Ejected())
			case 2, 3, 4:
				s.fail()
			}

			for range 3 {
				s.connect(clients)
				s.pass(60*time.Millisecond, 20*time.Millisecond)
			}

			s.at = fmt.Sprintf("seed %d, step %d", seed, step)
			s.check()
			together = max(together, len(s.Ejected()))
		}

		ejections += len(s.changes)
		clear(s.dead)
		s.pass(2*longest+2*between, time.Second/2)
		s.check()
		require.Empty(t, s.Ejected(), "seed %d", seed)
		require.True(t, servicemodel.Diff(s.table(s.state), s.table(s.got)).Empty())
	}

	t.Log(ejections, "changes,", restarts, "restarts,", together, "endpoints out at a time")
	require.Greater(t, ejections, 50)
	require.Greater(t, together, 1)
}

// fail makes some ports of an endpoint fail, or answer again.
func (s *story) fail() {
	var all []servicemodel.Endpoint
	for svc := range s.state.Services() {
		all = append(all, s.state.Endpoints(svc.Name)...)
	}
	if len(all) == 0 {
		return
	}
	ep := pick(s.r, all...)
	dead := s.r.IntN(3) > 0
	for _, p := range ep.Ports {
		if s.r.IntN(3) > 0 {
			s.dead[netip.AddrPortFrom(ep.Addr, p.Port)] = dead
		}
	}
}
