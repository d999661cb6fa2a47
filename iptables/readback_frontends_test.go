package iptables

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// readingOf returns a reading of a memory.
func readingOf(m *memory) *reading {
	return &reading{l: newLayout(defaultPrefix), raw: m.list(), pools: map[sm.PoolID]*sm.Pool{}}
}

func TestRulesThatAreForOneFrontend(t *testing.T) {
	t.Parallel()
	r := readingOf(newMemory())
	one := must.Prefixes("10.96.0.10/32")[0]
	address := sm.FrontendKey{Addr: one.Addr(), Protocol: sm.TCP, Port: 80}
	port := sm.FrontendKey{Addr: netip.IPv4Unspecified(), Protocol: sm.TCP, Port: 80}
	port6 := port
	port6.Addr = netip.IPv6Unspecified()
	services, ports := r.l.tree(nft.IPv4, natServices), r.l.tree(nft.IPv4, natNodePorts)
	for _, c := range []struct {
		name string
		tree *dispatch
		rule rule
		want *sm.FrontendKey
	}{
		{"an address", services, rule{dst: one, proto: sm.TCP, ports: single(80)}, &address},
		{"no protocol", services, rule{dst: one, ports: single(80)}, nil},
		{"a range of ports", services,
			rule{dst: one, proto: sm.TCP, ports: portRange{80, 81}}, nil},
		{"any port", services, rule{dst: one, proto: sm.TCP}, nil},
		{"a range of addresses", services,
			rule{dst: must.Prefixes("10.96.0.0/24")[0], proto: sm.TCP, ports: single(80)}, nil},
		{"no address", services, rule{proto: sm.TCP, ports: single(80)}, nil},
		{"a node port", ports, rule{proto: sm.TCP, ports: single(80)}, &port},
		{"a node port of IPv6", r.l.tree(nft.IPv6, natNodePorts),
			rule{proto: sm.TCP, ports: single(80)}, &port6},
		{"a node port of an address", ports,
			rule{dst: one, proto: sm.TCP, ports: single(80)}, nil},
	} {
		key, ok := r.key(c.tree, &c.rule)
		require.Equal(t, c.want != nil, ok, c.name)
		if ok {
			require.Equal(t, *c.want, key, c.name)
		}
	}
}

// A rule in a chain of source ranges that names no source, which only another program makes, lets
// every client pass. Other targets and matches do not decide about ranges.
func TestRulesOfSourceRanges(t *testing.T) {
	t.Parallel()
	one := must.Prefixes("192.0.2.0/24")[0]
	for _, f := range []*nft.Family{nft.IPv4, nft.IPv6} {
		r := readingOf(newMemory())
		chain := chainID{table: filter.of(f), name: r.l.names.prefix + "-" + kindSources + "-X"}
		var fe sm.Frontend
		require.False(t, r.sources(f, &fe, chain), "no chain")
		r.raw.chains[chain] = &rawChain{rules: []rule{{target: targetReturn, src: one},
			{target: targetGoto, chain: "X"}, {target: targetDrop}, {target: targetReturn,
				opaque: true}}}
		require.True(t, r.sources(f, &fe, chain))
		require.Equal(t, []netip.Prefix{one, netip.PrefixFrom(f.Any, 0)}, fe.Sources)
	}
}

// The rules of a pool are read from the last to the first. Rules without an endpoint are ignored.
func TestRulesOfAPool(t *testing.T) {
	t.Parallel()
	r := readingOf(newMemory())
	to := func(s string) rule {
		return rule{proto: sm.TCP, target: targetDNAT, to: netip.MustParseAddrPort(s)}
	}
	with := func(r rule, comment string, k recentKind) rule {
		r.comment, r.recent.kind = comment, k
		return r
	}

	a, b := to("10.244.1.1:8080"), to("10.244.1.2:8080")
	slot := func(r rule, w uint16) sm.Slot { return sm.Slot{Endpoint: r.to, Weight: w} }
	for _, c := range []struct {
		name     string
		rules    []rule
		affinity bool
		want     []sm.Slot
	}{
		{"no chain", nil, false, nil},
		{"no rules", []rule{}, false, nil},
		{"two", []rule{{target: targetJump, chain: "X"}, b, a}, false,
			[]sm.Slot{slot(a, 1), slot(b, 1)}},
		{"weights", []rule{with(b, "weight=7", recentNone), a}, false,
			[]sm.Slot{slot(a, 1), slot(b, 7)}},
		{"a weight of nonsense", []rule{with(b, "weight=x", recentNone), a}, false, nil},
		{"one twice", []rule{a, b, a}, false, []sm.Slot{slot(a, 1), slot(b, 1)}},
		{"affinity", []rule{
			with(b, "", recentUpdate), with(a, "", recentUpdate), with(b, "weight=2", recentSet),
			with(a, "", recentSet),
		}, true, []sm.Slot{slot(a, 1), slot(b, 2)}},
		{"affinity that is not set", []rule{with(a, "", recentUpdate), b}, true, nil},
	} {
		var chain *rawChain
		if c.rules != nil {
			chain = &rawChain{rules: c.rules}
		}
		p := r.readPool(sm.PoolID{}, chain, c.affinity)
		if c.want == nil {
			require.Nil(t, p, c.name)
			continue
		}

		require.Equal(t, c.want, p.Slots, c.name)
	}

	p := r.readPool(sm.PoolID{},
		&rawChain{rules: []rule{b, with(a, "default/web scheduler=rr", recentNone)}}, false)
	require.Equal(t, sm.RoundRobin, p.Scheduler)
}

// restrictedServices are many services, web with source ranges and affinity, and empty with source
// ranges and no endpoints.
func restrictedServices() (s sm.State, web, empty sm.PortName) {
	s = manyServices(40, 3)
	w := *webService().Service(svcName("web"))
	w.LoadBalancerSourceRanges = must.Prefixes("198.51.100.0/24", "192.0.2.0/24")
	w.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: time.Minute}
	s = s.WithService(&w).WithEndpoints(w.Name, webService().Endpoints(w.Name))
	e := *webService().Service(svcName("web"))
	e.Name, e.ClusterIPs, e.ExternalIPs = svcName("empty"), must.Addrs("10.96.0.11"), nil
	e.Ports = []sm.ServicePort{{Protocol: sm.TCP, Port: 80}}
	e.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: must.Addrs("203.0.113.9")[0]}}
	e.LoadBalancerSourceRanges = must.Prefixes("198.51.100.0/24")
	return s.WithService(&e), sm.PortName{Name: w.Name, Port: "http", Protocol: sm.TCP},
		sm.PortName{Name: e.Name, Protocol: sm.TCP}
}

// A frontend is not read if it lacks a chain, or if its rule is wrong. All other frontends are
// read.
func TestOneDamagedServiceIsNotRead(t *testing.T) {
	t.Parallel()
	s, web, empty := restrictedServices()
	p := planFor(t, s)[0]
	l := newLayout(defaultPrefix)
	webSources := nat4.chain(l.names.service(kindSources, web, ""))
	emptySources := filter4.chain(l.names.service(kindSources, empty, ""))
	type chains = map[chainID]*rawChain
	for _, c := range []struct {
		name   string
		damage func(chains)
		gone   int // number of frontends that are not read
	}{
		{"no chain of sources", func(c chains) { delete(c, webSources) }, 1},
		{"no chain of sources without endpoints", func(c chains) {
			delete(c, emptySources)
		}, 1},
		{"other sources", func(c chains) {
			c[webSources].rules = c[webSources].rules[1:]
		}, 1},
		{"other sources without endpoints", func(c chains) {
			c[emptySources].rules = c[emptySources].rules[1:]
		}, 1},
		{"what is no source range does not matter", func(c chains) {
			c[webSources].rules = append([]rule{{opaque: true}, {target: targetAccept}},
				c[webSources].rules...)
		}, 0},
		{"no chain of the pool, to which four lead", func(c chains) {
			delete(c, nat4.chain(l.names.service(kindCluster, web, "")))
		}, 4},
	} {
		m := newMemory()
		m.apply(l, p)
		c.damage(m.raw.chains)
		o := ok(l.interpret(m.list(), nil))(t)
		d := sm.Diff(o.state.table, resolve(t, nil, s).Arrange(o.state.table))
		require.Len(t, d.Frontends, c.gone, "%s: %s", c.name, d)
		require.NotZero(t, len(o.text)+len(d.Frontends), c.name)
	}
}
