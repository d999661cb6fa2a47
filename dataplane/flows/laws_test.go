package flows_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// After any change of services, the flows that it made stale are deleted, and correct flows stay. A
// new keeper also finds flows that were wrong before, and no keeper touches other flows. Time
// passes between the changes, so that frontends are searched again, and some passes fail.
func TestNoStaleFlowIsLeftAndNoOtherIsTouched(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("KERNLB_TEST_SEED=%d", seed)
	if s := os.Getenv("KERNLB_TEST_SEED"); s != "" {
		seed = ok(strconv.ParseUint(s, 10, 64))(t)
	}
	rng := rand.New(rand.NewPCG(seed, 6))
	walks := 40
	if testing.Short() {
		walks = 8
	}
	for range walks {
		synctest.Test(t, func(t *testing.T) { walk(t, rng) })
	}
}

func walk(t *testing.T, rng *rand.Rand) {
	c := lawConfig()
	if rng.IntN(2) == 0 {
		c.Edit = func(svc *sm.Service) { manyRanges(rng, svc) }
	}
	g := randstate.New(c, rng)
	s := g.State()
	runs, anew := newWorld(t, flows.Config{}), newWorld(t, flows.Config{})
	runs.apply(t, s)
	anew.apply(t, s)
	due := map[string]bool{} // made stale since the last pass
	for range 15 {
		was := resolve(t, s)
		for range 20 {
			f := randomFlow(rng, was)
			runs.put(f)
			anew.put(f)
		}

		time.Sleep(time.Duration(rng.IntN(4)*rng.IntN(5)) * 100 * time.Millisecond)
		s = g.Change(s)
		is := resolve(t, s)
		before := set(runs.list())
		for f := range before {
			due[f] = madeStale(was, is, parse(f)) || due[f] && !madeStale(is, was, parse(f))
		}
		anew.restart(t)
		anew.apply(t, s)
		if rng.IntN(4) == 0 {
			runs.fail(errors.New("no memory"))
			_, err := runs.engine.Apply(t.Context(), s)
			require.NoError(t, err)
			runs.fail(nil)
			anew.flows = slices.Clone(runs.flows)
			continue
		}

		runs.apply(t, s)
		left, leftAnew := set(runs.list()), set(anew.list())
		for f := range before {
			if serves(s, parse(f).Reply.Src) { // otherwise the endpoint lingers
				continue
			}
			requireLaws(t, was, is, f, left[f], leftAnew[f])
			if due[f] && left[f] {
				t.Fatalf("%s was made stale when a pass failed, and is left after\n%s", f,
					sm.Diff(was, is))
			}
		}

		clear(due)
		runs.flows = slices.Clone(anew.flows)
	}
}

// manyRanges makes the last port of a service a range, at few different ports.
func manyRanges(rng *rand.Rand, svc *sm.Service) {
	p := &svc.Ports[len(svc.Ports)-1]
	*p = sm.ServicePort{Name: "p2", Protocol: sm.UDP, Port: uint16(50 + rng.IntN(4)*10),
		EndPort: uint16(90 + rng.IntN(4)*10)}
}

// requireLaws checks the fate of a flow, with a keeper that ran all along and with a new keeper.
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
			if ep.Addr == e.Addr() && (ep.Condition == sm.Serving ||
				ep.Condition == sm.Quiesced) {
				return true
			}
		}
	}

	return false
}

// gone reports whether the frontend that a flow was sent to no longer exists.
func gone(is *sm.Table, f conntrack.Flow) bool { return f.Translated() && frontendAt(is, f) == nil }

func lawConfig() randstate.Config {
	c := randstate.Config{Services: 4, EndpointPorts: []uint16{53, 80}, Node: node, Ranges: true,
		NodeRanges: true, Shifted: true,
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
	return ok(sm.Resolve(nil, s))(t)
}

// randomFlow is a flow that the table may have created, or a flow that resembles it.
func randomFlow(rng *rand.Rand, t *sm.Table) string {
	all := slices.Collect(t.Frontends())
	if len(all) == 0 {
		return "udp 203.0.113.99:53"
	}
	f := all[rng.IntN(len(all))]
	width := int(f.Key.LastPort() - f.Key.Port)
	port := f.Key.Port + []uint16{0, uint16(rng.IntN(width + 1)), uint16(width)}[rng.IntN(3)]
	if port != 0 && width > 0 && rng.IntN(3) == 0 {
		port = 80 // the port of other services
	}
	to := netip.AddrPortFrom(f.Key.Addr, port)
	if f.Key.NodePort() {
		node := must.Addrs("192.0.2.10", "2001:db8:2::10")
		to = netip.AddrPortFrom(node[f.Key.Family()/6], f.Key.Port)
	}
	flow := conntrack.Flow{Protocol: conntrack.Protocol(f.Key.Protocol), Original: conntrack.Tuple{
		Dst: to}, Reply: conntrack.Tuple{Src: to}}
	if eps := endpointsAt(t, f, port); len(eps) > 0 && rng.IntN(4) > 0 {
		flow.Reply.Src = eps[rng.IntN(len(eps))]
	}
	if rng.IntN(8) == 0 {
		flow.Original.Dst = netip.AddrPortFrom(to.Addr(), to.Port()+7)
	}
	return text(flow)
}

func endpointsAt(t *sm.Table, f *sm.Frontend, port uint16) (l []netip.AddrPort) {
	if f == nil {
		return nil
	}
	for _, v := range []sm.Verdict{f.Internal, f.External} {
		if id, ok := f.Pool(v); ok {
			for _, s := range t.Pool(id).Slots {
				l = append(l, f.Target(s.Endpoint, port))
			}
		}
	}

	return l
}

// frontendAt finds the frontend that answers at an address, by a plain search.
func frontendAt(t *sm.Table, f conntrack.Flow) *sm.Frontend {
	key := sm.FrontendKey{Addr: f.Original.Dst.Addr(), Protocol: sm.Protocol(f.Protocol),
		Port: f.Original.Dst.Port()}
	if found := t.Frontend(key); found != nil {
		return found
	}
	takes := func(p netip.Prefix) bool { return p.Contains(key.Addr) }
	mine := slices.Contains(must.Addrs("192.0.2.10", "192.0.2.11", "2001:db8:2::10"), key.Addr)
	any := key
	any.Addr = netip.IPv4Unspecified()
	if f.Original.Dst.Addr().Is6() {
		any.Addr = netip.IPv6Unspecified()
	}

	mine = mine && slices.ContainsFunc(t.Rules().NodePorts, takes)
	if found := t.Frontend(any); mine && found != nil {
		return found
	}
	found := narrowest(t, key)
	if found == nil && mine {
		found = narrowest(t, any)
	}
	return found
}

// narrowest finds the range at an address that answers at a port, by a plain search.
func narrowest(t *sm.Table, key sm.FrontendKey) *sm.Frontend {
	var best *sm.Frontend
	for f := range t.Frontends() {
		if f.Key.Addr == key.Addr && f.Key.Protocol == key.Protocol && f.Key.EndPort != 0 &&
			f.Key.Contains(key.Port) && (best == nil ||
			f.Key.EndPort-f.Key.Port < best.Key.EndPort-best.Key.Port) {
			best = f // of equal width, the first one
		}
	}

	return best
}

// misplaced reports whether a flow is stale by the present table alone.
func misplaced(is *sm.Table, f conntrack.Flow) bool {
	now := frontendAt(is, f)
	if now == nil || f.Protocol != conntrack.UDP {
		return false
	}
	eps := endpointsAt(is, now, f.Original.Dst.Port())
	return !slices.Contains(eps, f.Reply.Src) && (f.Translated() || len(eps) > 0)
}

// madeStale reports whether the change made a flow stale: before it, the flow was correct or had no
// better destination.
func madeStale(was, is *sm.Table, f conntrack.Flow) bool {
	if f.Protocol != conntrack.UDP {
		return false
	}
	port := f.Original.Dst.Port()
	before := endpointsAt(was, frontendAt(was, f), port)
	now := endpointsAt(is, frontendAt(is, f), port)
	if f.Translated() {
		return slices.Contains(before, f.Reply.Src) && !slices.Contains(now, f.Reply.Src)
	}
	return len(before) == 0 && len(now) > 0
}

// Even if services share the addresses of the node and loopback, the matcher accepts the change,
// and stale flows of every service are deleted.
func TestEveryChangeIsOneThatAMatcherTakes(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 7))
	c := lawConfig()
	places := must.Addrs("127.0.0.1", "192.0.2.10", "192.0.2.11", "2001:db8:2::10")
	for _, all := range []bool{true, false} {
		n := node
		n.LocalhostNodePorts, n.NodePortAddresses.Primary = true, !all
		c.Nodes = append(c.Nodes, n)
	}

	c.Node = c.Nodes[2]
	c.Edit = func(svc *sm.Service) {
		if rng.IntN(2) == 0 {
			svc.Connections.Mode = sm.CutConnections
		}
		if rng.IntN(2) == 0 {
			manyRanges(rng, svc)
			svc.Ports[len(svc.Ports)-1].Protocol = []sm.Protocol{sm.TCP, sm.UDP}[rng.IntN(2)]
		}
	}

	published := func(s sm.State) sm.State {
		svc := &sm.Service{Name: sm.Name{Namespace: "default", Name: "published"},
			HostIPs: []netip.Addr{places[rng.IntN(len(places))]}}
		for port := range uint16(16) { // the numbers of the node ports of randstate
			svc.Ports = append(svc.Ports, sm.ServicePort{Name: fmt.Sprintf("p%d", port),
				Protocol: sm.UDP, Port: 30000 + port})
		}

		eps := endpoints(1 + rng.IntN(2))
		for i := range eps {
			eps[i].Ports = nil
			for _, p := range svc.Ports {
				eps[i].Ports = append(eps[i].Ports,
					sm.EndpointPort{Name: p.Name, Protocol: sm.UDP, Port: 5353})
			}
		}

		return s.WithService(svc).WithEndpoints(svc.Name, eps)
	}

	for range 20 {
		g, w := randstate.New(c, rng), newWorld(t, flows.Config{})
		w.addrs = append(w.addrs, places[0])
		s := g.State()
		for range 20 {
			s = g.Change(s)
			if rng.IntN(2) == 0 {
				s = published(s)
			}
			if rng.IntN(3) == 0 { // then the next pass includes this change
				w.fail(errors.New("no memory"))
				_, err := w.engine.Apply(t.Context(), s)
				require.NoError(t, err)
				w.fail(nil)
				continue
			}

			w.apply(t, s)
		}
	}
}

// A UDP node port also answers at loopback, and a service has a frontend with the same port at
// 127.0.0.1.
func TestANodePortBesideAPortOfLocalhost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, flows.Config{})
	n := node
	n.LocalhostNodePorts, n.NodePortAddresses = true, sm.NodePortAddresses{}
	local := service(func(s *sm.Service) {
		s.Name.Name, s.ClusterIPs, s.ExternalIPs = "local", nil, nil
		s.HostIPs = must.Addrs("127.0.0.1")
		s.Ports = []sm.ServicePort{{Name: "dns", Protocol: sm.UDP, Port: 30053}}
	})
	state := func(nodePort, localhost int) sm.State {
		return serving(service(), endpoints(nodePort)).WithNode(n).WithService(local).
			WithEndpoints(local.Name, endpoints(localhost))
	}

	w.apply(t, state(1, 2))
	w.put("udp 10.96.0.10:53 > 10.244.0.1:5353", "udp 127.0.0.1:30053 > 10.244.0.2:5353")
	w.apply(t, state(3, 2))
	require.Equal(t, []string{"udp 127.0.0.1:30053 > 10.244.0.2:5353"}, w.list())
	w.put("udp 10.96.0.10:53 > 10.244.0.3:5353")
	w.apply(t, state(4, 5))
	require.Empty(t, w.list(), "both are due")
}

// Programs of the node may send from the number of a node port at loopback.
func TestFlowsFromLoopbackAreNotLateAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, flows.Config{})
	n := node
	n.LocalhostNodePorts, n.NodePortAddresses = true, sm.NodePortAddresses{}
	w.apply(t, serving(service(), endpoints()).WithNode(n))
	f := parse("udp 127.0.0.1:4000")
	f.Original.Src = netip.MustParseAddrPort("127.0.0.1:30053")
	f.Reply.Dst = f.Original.Src
	w.flows = []conntrack.Flow{f}
	w.apply(t, serving(service(), endpoints(1)).WithNode(n))
	require.Equal(t, []conntrack.Flow{f}, w.flows)
}

// A range was replaced by a wider one, and its ports are searched again when the wider range loses
// an endpoint.
func TestASecondSearchHidesNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, flows.Config{})
		state := func(first, last uint16, hosts ...int) sm.State {
			eps := each(endpoints(hosts...), func(e *sm.Endpoint) { e.Ports[0].Port = 0 })
			return serving(service(func(s *sm.Service) {
				s.Ports = []sm.ServicePort{{Name: "dns", Protocol: sm.UDP, Port: first,
					EndPort: last}}
			}), eps)
		}

		w.apply(t, state(1000, 1010))
		w.apply(t, state(1000, 1010, 1))
		w.apply(t, state(900, 1100, 1, 2))
		w.put("udp 10.96.0.10:1005 > 10.244.0.2:1005")
		time.Sleep(150 * time.Millisecond)
		w.apply(t, state(900, 1100, 1))
		require.Empty(t, w.list())
	})
}

// A port is removed from within a range, and the range loses an endpoint before the next pass.
func TestARemovedPortIsSearchedLikeItsRange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, flows.Config{Connections: sm.ConnectionPolicy{Mode: sm.CutConnections}})
	state := func(hosts []int, ports ...sm.ServicePort) sm.State {
		eps := each(endpoints(hosts...), func(e *sm.Endpoint) {
			e.Ports[0] = sm.EndpointPort{
				Name: "range", Protocol: sm.TCP}
		})
		return serving(service(func(s *sm.Service) { s.Ports = ports }), eps)
	}
	wide := sm.ServicePort{Name: "range", Protocol: sm.TCP, Port: 70, EndPort: 90}
	web := sm.ServicePort{Name: "web", Protocol: sm.TCP, Port: 80}
	w.apply(t, state([]int{1, 2}, wide, web))
	w.put("tcp 10.96.0.10:80 > 10.244.0.1:8080", "tcp 10.96.0.10:80 > 10.244.0.1:80",
		"tcp 10.96.0.10:80 > 10.244.0.2:80")
	w.fail(errors.New("no memory"))
	unsettled(w.engine.Apply(t.Context(), state([]int{1, 2}, wide)))(t)
	w.fail(nil)
	w.apply(t, state([]int{1}, wide))
	require.Equal(t, []string{"tcp 10.96.0.10:80 > 10.244.0.1:80"}, w.list())
}

// A port and the range around it are removed at once. Connections to the range's endpoint that
// began before the port had an endpoint of its own are cut, too.
func TestARemovedPortIsSearchedLikeTheRangeAroundIt(t *testing.T) {
	t.Parallel()
	wide := sm.ServicePort{Name: "range", Protocol: sm.TCP, Port: 70, EndPort: 90}
	narrow := sm.ServicePort{Name: "web", Protocol: sm.TCP, Port: 80}
	for _, end := range []uint16{0, 85} {
		w := newWorld(t, flows.Config{Connections: sm.ConnectionPolicy{Mode: sm.CutConnections}})
		narrow.EndPort = end
		state := func(ports ...sm.ServicePort) sm.State {
			of := func(host int, port string) []sm.Endpoint {
				return each(endpoints(host), func(e *sm.Endpoint) {
					e.Ports = []sm.EndpointPort{{Name: port, Protocol: sm.TCP}}
				})
			}
			eps := append(of(1, "web"), of(2, "range")...)
			return serving(service(func(s *sm.Service) { s.Ports = ports }), eps)
		}
		w.apply(t, state(wide))
		w.put("tcp 10.96.0.10:80 > 10.244.0.2:80", "tcp 10.96.0.10:71 > 10.244.0.2:71")
		w.apply(t, state(wide, narrow))
		require.Len(t, w.list(), 2)
		w.put("tcp 10.96.0.10:81 > 10.244.0.2:81", "tcp 10.96.0.10:80 > 10.244.0.1:80")
		w.apply(t, state())
		require.Empty(t, w.list(), end)
	}
}
