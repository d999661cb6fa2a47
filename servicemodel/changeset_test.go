package servicemodel_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
	sm "github.com/kernlb/kernlb/servicemodel"
)

var (
	beforeChange = sm.State{}.WithNode(thisNode).WithService(webService()).
			WithEndpoints(web, []sm.Endpoint{oneEndpoint})
	oneEndpoint = endpoint("10.64.0.1", here)
	twoWeight3  = endpoint("10.64.0.2", func(e *sm.Endpoint) { e.Weight = 3 })
)

// dnsService returns a service with the same protocol and port in both families.
func dnsService() *sm.Service {
	return webService(func(s *sm.Service) {
		s.Name = sm.Name{Namespace: "kube-system", Name: "dns"}
		s.ClusterIPs = addrs("10.96.0.10", "fd96::10")
		s.Ports = []sm.ServicePort{{Name: "dns", Protocol: sm.UDP, Port: 53}}
	})
}

// fullService returns the web service with every field set.
func fullService() *sm.Service {
	return webService(everywhere, externalLocal, func(s *sm.Service) {
		s.SessionAffinity.ClientIP = true
		s.LoadBalancerSourceRanges = prefixes("10.0.0.0/8", "198.51.100.0/24")
		s.HealthCheckNodePort = 32000
		s.Scheduler, s.Forwarding = sm.WeightedRR, sm.ForwardDirect
	})
}

func otherNode() sm.Node {
	n := thisNode
	n.MasqueradeMark, n.ServiceCIDRs = 1<<15, prefixes("10.96.0.0/12")
	n.LocalPods = sm.PodDetector{InterfacePrefix: "veth"}
	n.NodePortAddresses.Primary = true
	return n
}

// changesAsText are changes of states. testdata/changes.txt has their counts and texts.
var changesAsText = []struct {
	name          string
	before, after sm.State
}{
	{"a service comes", beforeChange, beforeChange.WithService(dnsService())},
	{"a service goes", beforeChange, beforeChange.WithoutService(web)},
	{"an endpoint is replaced", beforeChange,
		beforeChange.WithEndpoints(web, []sm.Endpoint{twoWeight3})},
	{"an endpoint comes", beforeChange,
		beforeChange.WithEndpoints(web, []sm.Endpoint{oneEndpoint, twoWeight3})},
	{"the last endpoint goes", beforeChange, beforeChange.WithEndpoints(web, nil)},
	{"everything about a service changes", beforeChange,
		beforeChange.WithService(fullService()).WithEndpoints(web, []sm.Endpoint{twoWeight3})},
	{"an address goes from one service to another", beforeChange,
		beforeChange.WithoutService(web).WithService(webService(named("app")))},
	{"the node changes", sm.State{}.WithNode(thisNode), sm.State{}.WithNode(otherNode())},
	{"nothing changes", beforeChange, beforeChange},
	{"a health check and its service come", sm.State{}, checkedState},
	{"a health check has another answer", checkedState, checkedState.WithEndpoints(web, nil)},
	{"a health check and its service go", checkedState, checkedState.WithoutService(web)},
	{"pods are told by a bridge", sm.State{},
		sm.State{}.WithNode(sm.Node{LocalPods: sm.PodDetector{Bridge: "cbr0"}})},
}

// checkedState is beforeChange with a health check node port and a different scheduler.
var checkedState = beforeChange.WithService(webService(externalLocal, func(s *sm.Service) {
	s.HealthCheckNodePort, s.Scheduler = 32000, sm.Maglev
}))

func TestChangeSetAsText(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, tt := range changesAsText {
		a := mustResolve(t, nil, tt.before)
		c := sm.Diff(a, mustResolve(t, a, tt.after))
		fmt.Fprintf(&all, "# %s: %+v\n%s\n", tt.name, c.Counts(), c)
		require.Equal(t, c.String() == "", c.Empty(), tt.name)
	}

	golden.File(t, "testdata/changes.txt", all.String())
}

func TestHealthChecksAreNoDifferenceOfKernels(t *testing.T) {
	t.Parallel()
	with := func(port uint16) *sm.Table {
		return tableOf(t, thisNode, webService(func(s *sm.Service) {
			externalLocal(s)
			s.HealthCheckNodePort = port
		}), endpoint("10.64.0.1", here))
	}

	read := ok(sm.NewTable(with(32000).Contents()))(t)
	for _, other := range []*sm.Table{with(32001), with(0), read} {
		require.True(t, with(32000).Equal(other))
		c := sm.Diff(other, with(32000))
		require.True(t, c.Empty())
		require.Len(t, c.Health, 1)
	}
}

// A reading has no health checks, so changes that are applied to a reading must contain all of
// them.
func TestStoredChangesHaveAllHealthChecks(t *testing.T) {
	t.Parallel()
	with := func(pod string) *sm.Table {
		return tableOf(t, thisNode, webService(func(s *sm.Service) {
			externalLocal(s)
			s.HealthCheckNodePort = 32000
		}), endpoint(pod, here))
	}

	old, want := with("10.64.0.1"), with("10.64.0.2")
	var c sm.ChangeSet
	require.NoError(t, json.Unmarshal(ok(json.Marshal(sm.Diff(old, want)))(t), &c))
	read := ok(sm.NewTable(old.Contents()))(t)
	on := ok(c.On(read))(t)
	require.Empty(t, sm.Diff(on.New, want).Health)
	require.Len(t, on.Health, 1)

	// Health checks that only the reader of a kernel remembers, and that the planner does not want,
	// are removed.
	other := sm.HealthCheck{Service: sm.Name{Namespace: "default", Name: "gone"}, Port: 32001}
	read = read.Apply(&sm.ChangeSet{Old: read, Health: []sm.Change[sm.HealthCheck]{{New: &other}}})
	on = ok(c.On(read))(t)
	require.Empty(t, sm.Diff(on.New, want).Health)
	require.Len(t, on.Health, 2)
}

func TestAChangeSetFromAnotherTableIsPartOfTheWhole(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 200 {
		s := r.state()
		a, b, x := mustResolve(t, nil, s), mustResolve(t, nil, r.edit(r.edit(s))),
			mustResolve(t, nil, r.edit(r.edit(s)))
		c := sm.Diff(a, b)
		require.Equal(t, c.String(), a.Changes(c).String())
		require.True(t, b.Changes(c).Empty())
		require.Equal(t, onlyOf(c, sm.Diff(x, b)).String(), x.Changes(c).String())
		require.Same(t, x, x.Changes(c).Old)
		require.Same(t, b, x.Changes(c).New)
		all := sm.Diff(nil, b)
		require.Equal(t, all.String(), all.Old.Changes(all).String())
	}
}

// onlyOf returns the part of the change set whole that concerns the objects of c.
func onlyOf(c, whole *sm.ChangeSet) *sm.ChangeSet {
	part := *whole
	if c.Rules == nil {
		part.Rules = nil
	}
	part.Frontends = both(c.Frontends, whole.Frontends,
		func(f sm.Change[sm.Frontend]) sm.FrontendKey { return one(f.Old, f.New).Key })
	part.Pools = both(c.Pools, whole.Pools,
		func(p sm.Change[sm.Pool]) sm.PoolID { return one(p.Old, p.New).ID })
	address := func(a sm.AddrChange) netip.Addr { return a.Addr }
	part.ClusterIPs = both(c.ClusterIPs, whole.ClusterIPs, address)
	part.Hairpins = both(c.Hairpins, whole.Hairpins, address)
	part.Health = both(c.Health, whole.Health, func(h sm.Change[sm.HealthCheck]) sm.Name {
		return one(h.Old, h.New).Service
	})
	return &part
}

// both returns the elements of list whose keys also occur in other.
func both[T any, K comparable](other, list []T, key func(T) K) []T {
	return slices.DeleteFunc(slices.Clone(list), func(e T) bool {
		return !slices.ContainsFunc(other, func(o T) bool { return key(o) == key(e) })
	})
}

func one[T any](old, new *T) *T {
	if old != nil {
		return old
	}
	return new
}

// The parts of a change set result in the same table as the whole. Each part changes something. In
// every intermediate table, each frontend has the pool over which it balances.
func TestPartsOfAChangeSetLeadWhereItLeads(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	parts := 0
	for i := range 60 {
		var old *sm.Table
		if i%3 > 0 {
			old = mustResolve(t, nil, r.state())
		}
		next := mustResolve(t, old, r.state())
		c := sm.Diff(old, next)
		for {
			first, rest := c.Split()
			if first == nil {
				break
			}
			parts++
			require.False(t, first.Empty())
			require.True(t, sm.Diff(first.Old, first.New).String() == first.String(),
				"it is what it says")
			require.True(t, first.New == rest.Old)
			for fe := range first.New.Frontends() {
				for _, v := range []sm.Verdict{fe.Internal, fe.External} {
					if id, ok := fe.Pool(v); ok {
						require.NotNil(t, first.New.Pool(id), "pool of %v", fe)
					}
				}
			}

			for _, f := range first.Frontends {
				require.True(t, f.New == nil || !next.HasClusterIP(f.New.Key.Addr) ||
					first.New.HasClusterIP(f.New.Key.Addr), "%v", f.New)
			}

			for a := range first.New.ClusterIPs() {
				require.True(t, next.HasClusterIP(a) ||
					first.Old.HasClusterIP(a), "%v", a)
			}

			for a := range first.New.Hairpins() {
				require.True(t, hasEndpoint(first.New, a), "%v", a)
			}
			for _, p := range first.Pools {
				if p.New == nil {
					continue
				}
				for _, slot := range p.New.Slots {
					a := slot.Endpoint.Addr()
					require.True(t, !next.HasHairpin(a) ||
						first.New.HasHairpin(a), "%v", p.New)
				}
			}

			require.Less(t, differences(rest), differences(c))
			require.True(t, sm.Diff(old, next).New == rest.New)
			c = rest
		}

		require.Empty(t, sm.Diff(c.Old.Apply(c), next).String())
	}

	require.Greater(t, parts, 60)
}

// hasEndpoint reports whether a pool of a table has an endpoint with that address.
func hasEndpoint(t *sm.Table, a netip.Addr) bool {
	for p := range t.Pools() {
		for _, s := range p.Slots {
			if s.Endpoint.Addr() == a {
				return true
			}
		}
	}

	return false
}

func TestWhatAddsLittleHasNoParts(t *testing.T) {
	t.Parallel()
	one := mustResolve(t, nil,
		sm.State{}.WithService(&sm.Service{Name: sm.Name{Namespace: "a", Name: "b"},
			ClusterIPs: addrs("10.96.0.1"),
			Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}))
	first, rest := sm.Diff(nil, one).Split()
	require.True(t, first == nil && rest == nil)
	first, rest = sm.Diff(one, nil).Split()
	require.True(t, first == nil && rest == nil)
}

func differences(c *sm.ChangeSet) int {
	return len(c.Frontends) + len(c.Pools) + len(c.ClusterIPs) + len(c.Hairpins)
}

// New objects come first and removed objects last, in each half, too.
func TestPartsAreInOrder(t *testing.T) {
	t.Parallel()
	state := func(names ...string) (s sm.State) {
		for _, n := range names {
			name := sm.Name{Namespace: "a", Name: n[:1]}
			s = s.WithService(&sm.Service{Name: name, ClusterIPs: addrs("10.96.0." + n[1:2]),
				Ports: []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}}).WithEndpoints(name,
				[]sm.Endpoint{{Addr: addrs("10.244.0." + n[2:])[0],
					Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 80}}}})
		}

		return s
	}

	old, next := mustResolve(t, nil, state("a11", "b22", "c33", "d44")),
		mustResolve(t, nil, state("c35", "d46", "e57", "f68"))
	var order []string
	var commit func(c *sm.ChangeSet)
	commit = func(c *sm.ChangeSet) {
		if first, rest := c.Split(); first != nil {
			commit(first)
			commit(rest)
			return
		}

		for _, p := range c.Pools {
			if p.Old != nil {
				p.New = p.Old
			}
			order = append(order, p.New.ID.Service.Name.Name)
		}
	}

	commit(sm.Diff(old, next))
	require.Equal(t, []string{"e", "f", "c", "d", "a", "b"}, order)
}

func TestSchedulersOfChangedServices(t *testing.T) {
	t.Parallel()
	state := func(scheduler sm.Scheduler, n int) sm.State {
		svc := dnsService()
		svc.Scheduler = scheduler
		return sm.State{}.WithNode(thisNode).WithService(webService()).WithService(svc).
			WithEndpoints(svc.Name, []sm.Endpoint{oneEndpoint, twoWeight3}[:n])
	}

	asks := map[sm.PortName]sm.Scheduler{{Name: dnsService().Name, Port: "dns",
		Protocol: sm.UDP}: sm.Maglev}
	resolve := func(t *testing.T, s sm.State) *sm.Table { return ok(sm.Resolve(nil, s))(t) }
	first, last := resolve(t, state(sm.Maglev, 0)), resolve(t, state(sm.Maglev, 2))
	random := resolve(t, state(sm.SchedulerDefault, 2))
	reading, err := sm.NewTable(sm.Contents{})
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		from, to *sm.Table
		want     map[sm.PortName]sm.Scheduler
	}{
		"from nothing":               {nil, last, asks},
		"from nothing, no endpoints": {nil, first, asks},
		"endpoints come":             {first, last, asks},
		"endpoints go":               {last, first, asks},
		"nothing changes":            {last, last, nil},
		"another service changes": {last, resolve(t,
			state(sm.Maglev, 2).WithService(webService(everywhere))), nil},
		"the scheduler comes":         {random, last, asks},
		"the scheduler goes":          {last, random, nil},
		"the service goes":            {last, resolve(t, sm.State{}.WithNode(thisNode)), nil},
		"from a table without memory": {reading, last, asks},
		"to nothing":                  {last, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got map[sm.PortName]sm.Scheduler
			for of, s := range sm.Diff(tt.from, tt.to).Schedulers() {
				if got == nil {
					got = map[sm.PortName]sm.Scheduler{}
				}
				got[of] = s
			}

			require.Equal(t, tt.want, got)
		})
	}
}
