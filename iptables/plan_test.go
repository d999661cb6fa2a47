package iptables

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// planFor plans the changes from an empty kernel through the given states.
func planFor(t *testing.T, states ...sm.State) []*plan {
	t.Helper()
	l := newLayout(defaultPrefix)
	k := &kernelState{shared: map[chainID][]rule{}}
	var table *sm.Table
	old := &state{}
	var plans []*plan
	for _, s := range states {
		next := resolve(t, table, s)
		st, ch := l.step(old, sm.Diff(table, next), k)
		p := l.plan(k, st, ch)
		plans = append(plans, p)
		b := backend{l: l, state: old, found: *k}
		b.committed(p)

		// not at random, so that the text is always the same
		b.found.nextVersion = uint32(len(plans))
		old, table, k = b.state, next, &b.found
	}

	return plans
}

// story returns a state and its changes, each with a name.
func story() (names []string, states []sm.State) {
	add := func(name string, s sm.State) sm.State {
		names, states = append(names, name), append(states, s)
		return s
	}

	s := add("first", webService())
	eps := slices.Clone(s.Endpoints(svcName("web")))
	eps[1].Addr = must.Addrs("10.244.1.9")[0]
	s = add("replace-endpoint", s.WithEndpoints(svcName("web"), eps))
	s = add("remove-endpoint", s.WithEndpoints(svcName("web"), slices.Concat(eps[:1], eps[2:])))
	change := func(edit func(*sm.Service)) sm.State {
		svc := *s.Service(svcName("web"))
		edit(&svc)
		return s.WithService(&svc)
	}

	s = add("affinity", change(func(svc *sm.Service) {
		svc.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: time.Minute}
	}))
	s = add("local-policy", change(func(svc *sm.Service) {
		svc.ExternalTrafficPolicy = sm.PolicyLocal
	}))
	s = add("health-check", change(func(svc *sm.Service) { svc.HealthCheckNodePort = 32000 }))
	s = add("source-ranges", change(func(svc *sm.Service) {
		svc.LoadBalancerSourceRanges = must.Prefixes("198.51.100.0/24", "192.0.2.0/24")
	}))
	eps = slices.Clone(eps)
	for i := range eps {
		eps[i].Node = "elsewhere"
	}
	s = add("none-local", s.WithEndpoints(svcName("web"), eps))
	s = add("no-endpoints", s.WithEndpoints(svcName("web"), nil))
	s = add("another-port", change(func(svc *sm.Service) {
		svc.Ports = append(svc.Ports[:1:1], sm.ServicePort{Name: "rpc", Protocol: sm.SCTP,
			Port: 9000})
		svc.Scheduler = sm.RoundRobin
	}))
	node := testNode()
	node.LocalhostNodePorts = true
	node.LocalPods = sm.PodDetector{InterfacePrefix: "cali"}
	s = add("node", s.WithNode(node))
	add("nothing", s.WithoutService(svcName("web")))
	return names, states
}

func TestPlansAsText(t *testing.T) {
	t.Parallel()
	names, states := story()
	for i, p := range planFor(t, states...) {
		golden.Plan(t, filepath.Join("testdata", "plan-"+names[i]+".txt"), p)
	}
}

func TestTheSamePlanHasTheSameBytes(t *testing.T) {
	t.Parallel()
	_, states := story()
	a, b := planFor(t, states...), planFor(t, states...)
	for i := range a {
		require.Equal(t, a[i].String(), b[i].String())
		require.Equal(t, encoded(a[i]), encoded(b[i]))
		require.Equal(t, a[i].Stats(), b[i].Stats())
	}
}

func encoded(p *plan) []byte {
	known := map[chainID]handles{}
	for _, x := range p.edited() {
		h := handles{first: 1}
		for i := range x.before {
			h.rules = append(h.rules, uint64(i+1))
		}
		known[x.id] = h
	}

	var b rawnl.Batch
	p.encode(&b, known)
	return append([]byte{}, b.Bytes()...)
}

// The size of a plan is proportional to the change.
func TestAPlanIsAsLargeAsTheChange(t *testing.T) {
	t.Parallel()
	s := manyServices(2000, 10)
	name := svcName("service-7")
	eps := slices.Clone(s.Endpoints(name))
	eps[4].Addr = endpoint(7, 60)
	replaced := s.WithEndpoints(name, eps)
	another := sm.Endpoint{Addr: endpoint(7, 61), Node: "n",
		Ports: eps[0].Ports}
	more := replaced.WithEndpoints(name, append(eps, another))
	plans := planFor(t, s, replaced, more, more.WithoutService(name))
	require.Greater(t, plans[0].Stats().Messages, 2000*12)
	require.Equal(t, 3, plans[1].Stats().Messages, "one rule replaced, and the version")
	require.Equal(t, 3, plans[2].Stats().Messages, "one rule inserted, and the version")
	require.Less(t, plans[3].Stats().Messages, 60)
	require.Empty(t, plans[0].edited(), "no rule is there")
	require.Len(t, plans[1].edited(), 1)
	for _, x := range plans[3].edited() {
		require.True(t, x.exists)
	}
}

// A large batch allocates its memory once, instead of repeatedly while it grows.
func TestALargeBatchIsAllocatedOnce(t *testing.T) {
	p := planFor(t, manyServices(500, 10))[0]
	var used rawnl.Batch
	p.encode(&used, nil)
	again := testing.AllocsPerRun(3, func() {
		used.Reset()
		p.encode(&used, nil)
	})
	anew := testing.AllocsPerRun(3, func() {
		var b rawnl.Batch
		p.encode(&b, nil)
	})
	require.Less(t, anew-again, 16.0)
}

// Free base chains, which a cleanup removes, accept and contain only rules of ours that it removes.
func TestWhichBaseChainsAreFree(t *testing.T) {
	t.Parallel()
	ours := &chainChange{before: make([]rule, 2)}
	for _, c := range []struct {
		chain nft.ChainInfo
		x     *chainChange
		free  bool
	}{
		{nft.ChainInfo{Chain: nft.Chain{Type: "nat"}}, nil, true},
		{nft.ChainInfo{Chain: nft.Chain{Type: "nat"}, Use: 1}, nil, false},
		{nft.ChainInfo{Chain: nft.Chain{Type: "nat"}, Use: 2}, ours, true},
		{nft.ChainInfo{Chain: nft.Chain{Type: "nat"}, Use: 3}, ours, false},
		{nft.ChainInfo{Chain: nft.Chain{Type: "nat", Drops: true}}, nil, false},
		{nft.ChainInfo{}, nil, false}, // not a base chain
	} {
		require.Equal(t, c.free, (&rawChain{ChainInfo: c.chain}).free(c.x), "%+v", c)
	}
}

// Our rules are changed only if the chain still has the rules that were read, in their order.
func TestHandlesAreOfTheRulesThatWereRead(t *testing.T) {
	t.Parallel()
	l := newLayout(defaultPrefix)
	a, b := rule{target: targetDrop}, rule{target: targetReturn}
	x := &chainChange{id: nat4.chain("KUBE-SEP-X"), before: []rule{a, b}}
	for _, c := range []struct {
		found []rule
		ok    bool
	}{
		{[]rule{a, b}, true}, {[]rule{b, a}, false}, {[]rule{a, a}, false}, {[]rule{a}, false},
		{[]rule{a, b, b}, false},
	} {
		var found []foundRule
		for i, r := range c.found {
			found = append(found, foundRule{handle: uint64(i + 5), rule: r})
		}
		h, ok := l.handlesOf(x, found)
		require.Equal(t, c.ok, ok, "%v", c.found)
		require.Equal(t, uint64(5), h.first)
		require.Len(t, h.rules, len(c.found))
	}
}
