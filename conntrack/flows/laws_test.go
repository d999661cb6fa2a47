package flows_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/flows"
	"github.com/kernlb/kernlb/internal/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// However services change: flows that a change made stale are gone after it, and flows that are
// right stay. A keeper made anew also finds what was wrong before, and no keeper touches what is
// not wrong.
func TestNoStaleFlowIsLeftAndNoOtherIsTouched(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 6))
	walks := 20
	if testing.Short() {
		walks = 4
	}
	for range walks {
		walk(t, rng)
	}
}

func walk(t *testing.T, rng *rand.Rand) {
	g := randstate.New(lawConfig(), rng)
	s := g.State()
	runs, anew := newWorld(t, flows.Config{}), newWorld(t, flows.Config{})
	runs.apply(t, s)
	anew.apply(t, s)
	for range 15 {
		was := resolve(t, s)
		for range 20 {
			f := randomFlow(rng, was)
			runs.put(f)
			anew.put(f)
		}
		s = g.Change(s)
		is := resolve(t, s)
		before := runs.list()
		runs.apply(t, s)
		anew.restart(t)
		anew.apply(t, s)
		left, leftAnew := set(runs.list()), set(anew.list())
		for f := range set(before) {
			if !serves(s, parse(f).Reply.Src) { // else it lingers
				requireLaws(t, was, is, f, left[f], leftAnew[f])
			}
		}
		runs.flows = slices.Clone(anew.flows)
	}
}

// requireLaws looks at what a keeper that ran all along and a new one left of a flow.
func requireLaws(t *testing.T, was, is *sm.Table, f string, left, leftAnew bool) {
	t.Helper()
	stale, wrong := madeStale(was, is, parse(f)), misplaced(is, parse(f))
	switch {
	case stale && (left || leftAnew):
		t.Fatalf("%s was made stale and is left (%t, %t) by\n%s", f, left, leftAnew,
			sm.Diff(was, is))
	case !stale && wrong && leftAnew:
		t.Fatalf("%s is stale and not found by a new keeper after\n%s", f, sm.Diff(was, is))
	case !stale && !wrong && !gone(is, parse(f)) && !(left && leftAnew):
		t.Fatalf("%s is right and was deleted (%t, %t) by\n%s", f, !left, !leftAnew,
			sm.Diff(was, is))
	}
}

func set(l []string) map[string]bool {
	m := map[string]bool{}
	for _, s := range l {
		m[s] = true
	}
	return m
}

// serves reports whether an endpoint terminates or is quiesced and still serves, for any service.
func serves(s sm.State, e netip.AddrPort) bool {
	for svc := range s.Services() {
		for _, ep := range s.Endpoints(svc.Name) {
			if ep.Addr == e.Addr() && (ep.Serving && ep.Terminating ||
				ep.Quiesced && (ep.Ready || ep.Serving)) {
				return true
			}
		}
	}
	return false
}

// gone reports whether nobody answers where a flow was sent to.
func gone(is *sm.Table, f conntrack.Flow) bool { return f.Translated() && frontendAt(is, f) == nil }

func lawConfig() randstate.Config {
	c := randstate.Config{Services: 4, EndpointPorts: []uint16{53, 80}, Node: node,
		Nodes: []sm.Node{node, {Name: "n2"}}}
	for i := range byte(4) {
		c.Places = append(c.Places,
			randstate.Place{IPv4: netip.AddrFrom4([4]byte{10, 244, 0, i + 1}),
				IPv6: netip.AddrFrom16([16]byte{0xfd, 15: i + 1}), Node: []string{"n1", "n2"}[i%2]})
	}
	return c
}

func resolve(t *testing.T, s sm.State) *sm.Table {
	t.Helper()
	table, err := sm.Resolve(nil, s)
	require.NoError(t, err)
	return table
}

// randomFlow is a flow that the table may have made, or one that looks like it.
func randomFlow(rng *rand.Rand, t *sm.Table) string {
	all := slices.Collect(t.Frontends())
	if len(all) == 0 {
		return "udp 203.0.113.99:53"
	}
	f := all[rng.IntN(len(all))]
	to := f.Key.AddrPort()
	if f.Key.NodePort() {
		to = netip.AddrPortFrom(addrs("192.0.2.10", "2001:db8:2::10")[f.Key.Family()/6], f.Key.Port)
	}
	flow := conntrack.Flow{Protocol: conntrack.Protocol(f.Key.Protocol), Original: conntrack.Tuple{
		Dst: to}, Reply: conntrack.Tuple{Src: to}}
	if eps := endpointsAt(t, f); len(eps) > 0 && rng.IntN(4) > 0 {
		flow.Reply.Src = eps[rng.IntN(len(eps))]
	}
	if rng.IntN(8) == 0 {
		flow.Original.Dst = netip.AddrPortFrom(to.Addr(), to.Port()+7)
	}
	return text(flow)
}

func endpointsAt(t *sm.Table, f *sm.Frontend) (l []netip.AddrPort) {
	if f == nil {
		return nil
	}
	for _, v := range []sm.Verdict{f.Internal, f.External} {
		if id, ok := f.Pool(v); ok {
			for _, s := range t.Pool(id).Slots {
				l = append(l, s.Endpoint)
			}
		}
	}
	return l
}

// frontendAt returns who answers at an address, the plain way.
func frontendAt(t *sm.Table, f conntrack.Flow) *sm.Frontend {
	key := sm.FrontendKey{Addr: f.Original.Dst.Addr(), Protocol: sm.Protocol(f.Protocol),
		Port: f.Original.Dst.Port()}
	if found := t.Frontend(key); found != nil {
		return found
	}
	takes := func(p netip.Prefix) bool { return p.Contains(key.Addr) }
	mine := slices.Contains(addrs("192.0.2.10", "192.0.2.11", "2001:db8:2::10"), key.Addr)
	if !mine || !slices.ContainsFunc(t.Rules().NodePorts, takes) {
		return nil
	}
	key.Addr = netip.IPv4Unspecified()
	if f.Original.Dst.Addr().Is6() {
		key.Addr = netip.IPv6Unspecified()
	}
	return t.Frontend(key)
}

// misplaced tells stale flows by what is there now.
func misplaced(is *sm.Table, f conntrack.Flow) bool {
	now := frontendAt(is, f)
	if now == nil || f.Protocol != conntrack.UDP {
		return false
	}
	eps := endpointsAt(is, now)
	return !slices.Contains(eps, f.Reply.Src) && (f.Translated() || len(eps) > 0)
}

// madeStale tells flows that were right before the change, or had no better place to go, and are
// not right after it.
func madeStale(was, is *sm.Table, f conntrack.Flow) bool {
	if f.Protocol != conntrack.UDP {
		return false
	}
	before, now := endpointsAt(was, frontendAt(was, f)), endpointsAt(is, frontendAt(is, f))
	if f.Translated() {
		return slices.Contains(before, f.Reply.Src) && !slices.Contains(now, f.Reply.Src)
	}
	return len(before) == 0 && len(now) > 0
}
