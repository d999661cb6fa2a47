package kernelspace_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/examples/kernelspace"
	"github.com/kernlb/kernlb/examples/kernelspace/hnsfake"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// faultyStates returns two states. Between them load balancers and endpoints are added, changed and
// removed.
func faultyStates() (from, to sm.State) {
	going, coming := sm.Name{Namespace: "default", Name: "going"},
		sm.Name{Namespace: "default", Name: "coming"}
	one := func(n sm.Name, vip string) *sm.Service {
		return &sm.Service{Name: n, ClusterIPs: must.Addrs(vip),
			Ports: []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}
	}

	from = with(service(everything), mixed...)
	from = with(from.WithService(one(going, "10.96.0.20")), "10.244.1.1", "10.244.2.7",
		"10.244.2.8", "fd00:10:244:1::1")
	to = with(service(everything, local), "10.244.1.1", "10.244.2.9", "fd00:10:244:2::7")
	to = to.WithService(one(coming, "10.96.0.21")).WithEndpoints(coming, to.Endpoints(web)[:2])
	return from, to
}

// TestEveryCallFails makes each call fail in turn, in each way, while an engine takes HNS from one
// state to another. Then it ends the process, or lets it continue. After the next apply, HNS must
// have the desired state and nothing else.
func TestEveryCallFails(t *testing.T) {
	t.Parallel()
	older := hnsfake.AllFeatures
	older.ModifyLoadBalancer = false
	for _, n := range []kernelspace.Network{bridge, overlay} {
		for _, f := range []kernelspace.Features{hnsfake.AllFeatures, older} {
			for _, fault := range []hnsfake.Fault{hnsfake.Refused, hnsfake.Lost} {
				for _, dies := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s modify %t fault %d dies %t", n.Name,
						f.ModifyLoadBalancer, fault, dies), func(t *testing.T) {
						t.Parallel()
						failEach(t, n, f, fault, dies)
					})
				}
			}
		}
	}
}

func failEach(t *testing.T, n kernelspace.Network, f kernelspace.Features, fault hnsfake.Fault,
	dies bool) {
	m := newMachine(t, n, f)
	from, to := faultyStates()
	m.apply(from)
	failed := 0
	for call := 1; ; call++ {
		e, _ := m.process()
		made := 0
		m.hns.Fail(func(string) hnsfake.Fault {
			if made++; made == call || dies && made > call {
				if made > call {
					return hnsfake.Refused // the process has ended: nothing reaches HNS any more
				}
				return fault
			}

			return hnsfake.None
		})

		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := e.Apply(ctx, to)
		cancel()
		m.hns.Fail(nil)
		if made < call {
			require.NoError(t, err)
			break
		}

		if err != nil {
			failed++
			require.ErrorContains(t, err, "kernelspace: ")
			require.ErrorIs(t, err, hnsfake.ErrFault)
		}

		if dies {
			e, _ = m.process()
		}
		apply(t, e, to)
		m.holds(to)
		from, to = to, from
	}

	require.Greater(t, failed, 15)
}

// holds requires that HNS has the load balancers of a state and nothing else of the instance.
func (m *machine) holds(s sm.State) {
	m.Helper()
	fresh := newMachine(m.T, m.network(), m.features())
	fresh.apply(s)
	require.Equal(m, fresh.content(), m.content())
	m.nothing(s)
}

func (m *machine) network() kernelspace.Network {
	n := must.OK(m.hns.Network(m.cfg.Network))(m)
	return *n
}

func (m *machine) features() kernelspace.Features {
	return must.OK(m.hns.Features())(m)
}

// content returns the contents of HNS, with addresses in place of identities.
func (m *machine) content() map[string]string {
	m.Helper()
	eps := must.OK(m.hns.Endpoints(m.network().ID))(m)
	out, addrs := map[string]string{}, map[string]string{}
	for _, e := range eps {
		addrs[e.ID] = e.IPConfigurations[0].IPAddress
		out["endpoint "+e.Name] = fmt.Sprint(e.IPConfigurations, e.MacAddress, e.Flags, e.Policies)
	}

	require.Len(m, out, len(eps), "two endpoints have one name")
	lbs := must.OK(m.hns.LoadBalancers())(m)
	for _, lb := range lbs {
		k, _ := lb.Key()
		for i, id := range lb.HostComputeEndpoints {
			lb.HostComputeEndpoints[i] = addrs[id]
		}
		lb.ID = ""
		out[k.String()] = fmt.Sprintf("%+v", lb)
	}

	return out
}

// brokenStore is a store whose calls fail one after the other.
type brokenStore struct {
	kernelspace.Store
	left int // calls until one fails
}

var errStore = errors.New("no space left on device")

func (s *brokenStore) fails() bool { s.left--; return s.left == 0 }

func (s *brokenStore) Load() ([]byte, error) {
	if s.fails() {
		return nil, errStore
	}
	return s.Store.Load()
}

func (s *brokenStore) Save(b []byte) error {
	if s.fails() {
		return errStore
	}
	return s.Store.Save(b)
}

func TestTheStoreFails(t *testing.T) {
	t.Parallel()
	m := newMachine(t, overlay, hnsfake.AllFeatures)
	store := &brokenStore{Store: m.cfg.Store}
	m.cfg.Store = store
	from, to := faultyStates()
	m.apply(from)
	for left := 1; ; left++ {
		e, _ := m.process()
		store.left = left
		_, err := e.Apply(t.Context(), to)
		if store.left > 0 {
			require.NoError(t, err)
			require.Greater(t, left, 4)
			return
		}

		require.ErrorIs(t, err, errStore)
		e, _ = m.process() // it died there
		apply(t, e, to)
		m.holds(to)
		from, to = to, from
	}
}

// TestRandomStates applies random states, each with the same process or with a new process. The
// state read back must equal the committed one, and the contents must equal those of a fresh
// machine with the same state.
func TestRandomStates(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			n := bridge
			if seed%2 == 1 {
				n = overlay
			}
			m := newMachine(t, n, hnsfake.AllFeatures)
			rng := rand.New(rand.NewPCG(seed, 0))
			g := randstate.New(randstate.Config{Services: 10, EndpointPorts: []uint16{8080},
				Node: sm.Node{Name: "this", Zone: "a"}, Places: places()}, rng)
			s := g.State()
			e, b := m.process()
			for range 40 {
				if rng.IntN(4) == 0 {
					e, b = m.process()
				}
				r := must.OK(e.Apply(t.Context(), s))(t)
				require.Empty(t, r.Drift)
				held := e.Status().Held
				o := must.OK(b.Observe(t.Context(), nil))(t)
				require.Empty(t, o.Drift)
				c := sm.Diff(held, o.Table)
				require.True(t, c.Empty(), "%s", c)

				fresh := newMachine(t, n, hnsfake.AllFeatures)
				other, _ := fresh.process()
				must.OK(other.Apply(t.Context(), s))(t)
				require.Equal(t, fresh.content(), m.content())
				for range 1 + rng.IntN(3) {
					s = g.Change(s)
				}
			}
		})
	}
}

func places() (l []randstate.Place) {
	for i := range 4 {
		l = append(l, randstate.Place{IPv4: addr(fmt.Sprint("10.244.1.", 1+i)),
			IPv6: addr(fmt.Sprint("fd00:10:244:1::", 1+i)), Node: "this", Zone: "a"},
			randstate.Place{IPv4: addr(fmt.Sprint("10.244.2.", 1+i)),
				IPv6: addr(fmt.Sprint("fd00:10:244:2::", 1+i)), Node: "other", Zone: "b"})
	}

	return l
}

// TestEveryField applies states that differ in the value of one field. A state that the backend
// accepts is read back, found by a new process, and repaired.
func TestEveryField(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	forwardHealthChecks(&m.cfg)
	accepted := 0
	for _, policy := range []func(*sm.Service){func(*sm.Service) {}, local} {
		for _, v := range randstate.Variants(with(service(everything, policy), mixed...), web) {
			e, b := m.process()
			r, err := e.Apply(t.Context(), v.State)
			if errors.Is(err, dataplane.ErrRefused) {
				continue
			}
			require.NoError(t, err, v.Name)
			if len(r.Refused) > 0 {
				continue
			}
			accepted++
			m.nothing(v.State)
			want := m.content()
			lbs := must.OK(m.hns.LoadBalancers())(t)
			if len(lbs) == 0 {
				continue
			}
			require.NoError(t, m.hns.DeleteLoadBalancer(lbs[accepted%len(lbs)].ID))
			i := must.OK(b.Integrity(t.Context()))(t)
			require.Equal(t, backends.Broken, i)
			m.hns.Calls()
			r = apply(t, e, v.State)
			require.True(t, r.IsRepair(), v.Name)
			require.Len(t, m.hns.Calls(), 1, v.Name)
			require.Equal(t, want, m.content(), v.Name)
		}
	}

	require.Greater(t, accepted, 40)
}

// A load balancer that another program deletes or changes is restored.
func TestRunRepairs(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	e, _ := m.process()
	state := with(service(everything), mixed...)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx, nil) }()
	t.Cleanup(func() { cancel(); <-ended })
	require.NoError(t, e.Wait(ctx, e.Set(state)))
	want := m.content()
	lbs := must.OK(m.hns.LoadBalancers())(t)
	deleted := time.Now()
	require.NoError(t, m.hns.DeleteLoadBalancer(lbs[0].ID))
	require.Eventually(t, func() bool {
		l, err := m.hns.LoadBalancers()
		return err == nil && len(l) == len(lbs)
	}, time.Minute, 10*time.Millisecond)

	t.Logf("repaired after %v", time.Since(deleted))
	require.Equal(t, want, m.content())

	// A change in place is found by the next full reading.
	changed := lbs[1]
	changed.ID, changed.PortMappings[0].InternalPort = "", 1
	must.OK(m.hns.ModifyLoadBalancer(lbs[1].ID, &changed))(t)
	e.Resync()
	r := must.OK(e.Apply(ctx, state))(t)
	require.True(t, r.IsRepair())
	require.Equal(t, want, m.content())
}

// Another process that writes the instance is noticed.
func TestAnotherWriter(t *testing.T) {
	t.Parallel()
	m := newMachine(t, bridge, hnsfake.AllFeatures)
	from, to := faultyStates()
	e, b := m.process()
	apply(t, e, from)
	m.apply(to)
	i := must.OK(b.Integrity(t.Context()))(t)
	require.Equal(t, backends.Broken, i)
	held := e.Status().Held
	_, err := b.Commit(t.Context(), sm.Diff(held, held))
	require.ErrorIs(t, err, kernelerr.ErrConflict)
	apply(t, e, from)
	m.holds(from)
	must.OK(e.Cleanup(t.Context()))(t)
	m.is(nil)
}

func TestFile(t *testing.T) {
	t.Parallel()
	f := kernelspace.File(t.TempDir() + "/kernlb/record.json")
	for _, want := range []string{"", "one", "two", ""} {
		if want == "" {
			require.NoError(t, f.Save(nil))
		} else {
			require.NoError(t, f.Save([]byte(want)))
		}

		got := must.OK(f.Load())(t)
		require.Equal(t, want, string(got))
	}

	require.Error(t, kernelspace.File(t.TempDir()).Save([]byte("x")))
}
