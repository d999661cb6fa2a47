package iptables

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// readingOf returns what is made of a memory.
func readingOf(m *memory) *reading {
	return &reading{l: newLayout(DefaultPrefix), raw: m.list(), pools: map[sm.PoolID]*sm.Pool{}}
}

func TestRulesThatAreForOneFrontend(t *testing.T) {
	t.Parallel()
	r := readingOf(newMemory())
	one := prefixes("10.96.0.10/32")[0]
	address := sm.FrontendKey{Addr: one.Addr(), Protocol: sm.TCP, Port: 80}
	port := sm.FrontendKey{Addr: netip.IPv4Unspecified(), Protocol: sm.TCP, Port: 80}
	port6 := port
	port6.Addr = netip.IPv6Unspecified()
	for _, c := range []struct {
		name string
		i    uint8
		tree treeID
		rule rule
		want *sm.FrontendKey
	}{
		{"an address", 0, natServices, rule{dst: one, proto: sm.TCP, ports: single(80)}, &address},
		{"no protocol", 0, natServices, rule{dst: one, ports: single(80)}, nil},
		{"a range of ports", 0, natServices,
			rule{dst: one, proto: sm.TCP, ports: portRange{80, 81}}, nil},
		{"any port", 0, natServices, rule{dst: one, proto: sm.TCP}, nil},
		{"a range of addresses", 0, natServices,
			rule{dst: prefixes("10.96.0.0/24")[0], proto: sm.TCP, ports: single(80)}, nil},
		{"no address", 0, natServices, rule{proto: sm.TCP, ports: single(80)}, nil},
		{"a node port", 0, natNodePorts, rule{proto: sm.TCP, ports: single(80)}, &port},
		{"a node port of IPv6", 1, natNodePorts, rule{proto: sm.TCP, ports: single(80)}, &port6},
		{"a node port of an address", 0, natNodePorts,
			rule{dst: one, proto: sm.TCP, ports: single(80)}, nil},
	} {
		key, ok := r.key(c.i, c.tree, &c.rule)
		require.Equal(t, c.want != nil, ok, c.name)
		if ok {
			require.Equal(t, *c.want, key, c.name)
		}
	}
}

func TestRulesThatLeadToAKey(t *testing.T) {
	t.Parallel()
	k := sm.FrontendKey{Addr: addrs("10.96.0.10")[0], Protocol: sm.TCP, Port: 80}
	near := prefixes("10.96.0.0/24")[0]
	for _, c := range []struct {
		rule rule
		want bool
	}{
		{rule{}, true}, {rule{dst: near}, true}, {rule{dst: prefixes("10.97.0.0/24")[0]}, false},
		{rule{proto: sm.TCP}, true}, {rule{proto: sm.UDP}, false}, {rule{dst: near, proto: sm.UDP},
			false},
		{rule{ports: portRange{64, 127}}, true}, {rule{ports: portRange{80, 95}}, true},
		{rule{ports: portRange{64, 80}}, true}, {rule{ports: portRange{81, 95}}, false},
		{rule{ports: portRange{64, 79}}, false},
		{rule{dst: near, proto: sm.TCP, ports: portRange{1, 9}}, false},
	} {
		require.Equal(t, c.want, c.rule.matchesKey(k), "%s", c.rule.text(sm.IPv4))
	}
}

// The rules of a pool are read from the last to the first; those that are no endpoint are passed
// over.
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

// A frontend that lacks a chain, or whose rule says something else than it should, is not read;
// all the others are.
func TestOneDamagedServiceIsNotRead(t *testing.T) {
	t.Parallel()
	s := manyServices(40, 3)
	web := *webService().Service(svcName("web"))
	web.LoadBalancerSourceRanges = prefixes("198.51.100.0/24", "192.0.2.0/24")
	web.SessionAffinity = sm.SessionAffinity{ClientIP: true, Timeout: time.Minute}
	s = s.WithService(&web).WithEndpoints(web.Name, webService().Endpoints(web.Name))
	empty := *webService().Service(svcName("web"))
	empty.Name, empty.Ports, empty.ClusterIPs = svcName("empty"),
		[]sm.ServicePort{{Protocol: sm.TCP, Port: 80}}, addrs("10.96.0.11")
	empty.ExternalIPs, empty.LoadBalancerIPs = nil,
		[]sm.LoadBalancerIP{{Addr: addrs("203.0.113.9")[0]}}
	empty.LoadBalancerSourceRanges = prefixes("198.51.100.0/24")
	s = s.WithService(&empty)
	p := planFor(t, s)[0]
	l := newLayout(DefaultPrefix)
	damage := func(change func(m *memory)) (gone []string) {
		m := newMemory()
		m.apply(l, p)
		change(m)
		o, err := l.interpret(m.list())
		require.NoError(t, err)
		d := sm.Diff(o.state.table, resolve(t, nil, s).Arrange(o.state.table))
		for _, f := range d.Frontends {
			fe := f.New
			if fe == nil {
				fe = f.Old
			}
			gone = append(gone, fe.Service.Name.Name+" "+fe.Key.String())
		}
		require.NotEmpty(t, append(o.text, gone...))
		return gone
	}
	webName := sm.PortName{Name: web.Name, Port: "http", Protocol: sm.TCP}
	emptyName := sm.PortName{Name: empty.Name, Protocol: sm.TCP}
	nat0 := func(m *memory) map[string]*rawChain { return m.raw.tables[0][nat].chains }
	filter0 := func(m *memory) map[string]*rawChain { return m.raw.tables[0][filter].chains }
	sources := func(chains map[string]*rawChain, n sm.PortName) *rawChain {
		return chains[l.names.service(kindSources, n, "")]
	}

	gone := damage(func(m *memory) { delete(nat0(m), l.names.service(kindSources, webName, "")) })
	require.Len(t, gone, 1)
	gone = damage(func(m *memory) {
		delete(filter0(m), l.names.service(kindSources, emptyName, ""))
	})
	require.Len(t, gone, 1)
	gone = damage(func(m *memory) { c := sources(nat0(m), webName); c.rules = c.rules[1:] })
	require.Len(t, gone, 1, "other sources")
	gone = damage(func(m *memory) { c := sources(filter0(m), emptyName); c.rules = c.rules[1:] })
	require.Len(t, gone, 1, "other sources")
	gone = damage(func(m *memory) {
		c := sources(nat0(m), webName)
		c.rules = append([]rule{{opaque: true}, {target: targetAccept}}, c.rules...)
	})
	require.Empty(t, gone, "what is no source range does not matter")
	gone = damage(func(m *memory) { delete(nat0(m), l.names.service(kindCluster, webName, "")) })
	require.Len(t, gone, 4, "all that lead to the pool")
}

// Source ranges of frontends that are rejected are found down the tree in filter, among many.
func TestSourceRangesAmongMany(t *testing.T) {
	t.Parallel()
	s := sm.State{}.WithNode(testNode())
	for i := range 300 {
		s = s.WithService(&sm.Service{
			Name:       svcName(fmt.Sprint("s", i)),
			Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: uint16(80 + i%3)}},
			ClusterIPs: []netip.Addr{spread(i)},
			LoadBalancerIPs: []sm.LoadBalancerIP{
				{Addr: netip.AddrFrom4([4]byte{203, 0, byte(113 + i%2), byte(i / 2)})}},
			LoadBalancerSourceRanges: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), 32),
			},
		})
	}
	m, l := newMemory(), newLayout(DefaultPrefix)
	m.apply(l, planFor(t, s)[0])
	o, err := l.interpret(m.list())
	require.NoError(t, err)
	require.Empty(t, o.text)
	requireSameTable(t, resolve(t, nil, s).Arrange(o.state.table), o.state.table)
}
