package dataplanetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// accepted applies a state. It reports false if the backend refuses only the value of the field. An
// empty value means any value.
func (w *world) accepted(t *testing.T, s servicemodel.State, field, value string) bool {
	t.Helper()
	table := ok(servicemodel.Resolve(nil, w.under.expressible(s)))(t)
	problems := dataplane.Problems(w.backend.Check(servicemodel.Diff(nil, table)))
	for _, p := range problems {
		if p.Field != field || value != "" && p.Value != value {
			t.Fatalf("%s %s: %v", field, value, p.Err)
		}
	}

	if len(problems) > 0 {
		t.Logf("refused: %v", problems[0].Err)
		return false
	}

	w.apply(t, s)
	return true
}

// prefixed identifies clients by prefixes of these lengths.
func prefixed(bits4, bits6 uint8) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) {
		s.SessionAffinity.Bits4, s.SessionAffinity.Bits6 = bits4, bits6
	}
}

func wholeService(s *servicemodel.Service) { s.SessionAffinity.WholeService = true }

// together asks at all targets and ports, counted from the first target, and returns the hosts that
// answer each client in each family. of returns the client of a way. Before that, a single packet
// takes each way of the port first, because the first packets of several connections may race with
// each other.
func (w *world) together(t *testing.T, from []string, of func(y way) string, first uint16,
	ports ...uint16) map[string][]string {
	t.Helper()
	at := func(port uint16) (l []way) {
		for _, d := range everywhere {
			l = append(l, w.ways(from, d.on(d.port+port))...)
		}
		return l
	}

	for _, y := range at(first) {
		w.shares(t, y, 1)
	}
	given := map[string][]string{}
	for _, port := range ports {
		for _, y := range at(port) {
			for name := range w.shares(t, y, 3) {
				host, _, _ := strings.Cut(name, "/")
				key := fmt.Sprint(of(y), " ", servicemodel.FamilyOf(y.to.Addr()))
				if !slices.Contains(given[key], host) {
					given[key] = append(given[key], host)
				}
			}
		}
	}

	return given
}

func requireTogether(t *testing.T, given map[string][]string, only ...string) {
	t.Helper()
	for key, hosts := range given {
		if len(hosts) != 1 {
			t.Errorf("%s: not one endpoint: %v", key, hosts)
		}
		if len(only) > 0 && !slices.Contains(only, hosts[0]) {
			t.Errorf("%s: only %v are left: %v", key, only, hosts)
		}
	}
}

var outsideClients = []string{"outside1", "outside2"}

// prefixStays asks with two clients of the same prefix. If their endpoints were independent, they
// would agree at all frontends only once in 10^14 times.
func prefixStays(t *testing.T, w *world) {
	with := func(hosts ...string) servicemodel.State {
		return state(podCIDRs(thisNode()), web(sticky(time.Hour), prefixed(24, 64)), eps(hosts...))
	}
	if !w.accepted(t, with("pod2", "pod3", "remote1", "remote2"), backends.FieldAffinityBits,
		"") {
		return
	}

	ask := func() map[string][]string {
		return w.together(t, outsideClients,
			func(y way) string { return fmt.Sprint(y.proto, y.to) }, 0, 0)
	}

	first := ask()
	requireTogether(t, first)

	// Bits of all addresses of the network are not equal.
	w.apply(t, with("pod3", "remote1"))
	second := ask()
	requireTogether(t, second, "pod3", "remote1")
	for key, hosts := range second {
		if was := first[key][0]; (was == "pod3" || was == "remote1") && hosts[0] != was {
			t.Errorf("%s: was given %s, which is still there, now %v", key, was, hosts)
		}
	}

	w.apply(t, with("pod2"))
	requireTogether(t, ask(), "pod2")
}

// prefixInsideAndOutside asks from the node and from an outside client with the same prefix. Only
// the outside client is confined to endpoints on this node.
func prefixInsideAndOutside(t *testing.T, w *world) {
	with := func(hosts ...string) servicemodel.State {
		return state(podCIDRs(thisNode()), web(sticky(time.Hour), prefixed(5, 16), externalLocal),
			eps(hosts...))
	}

	if !w.accepted(t, with("remote1", "pod2"), backends.FieldAffinityBits, "") {
		return
	}
	w.apply(t, with("remote1"))
	for _, y := range w.ways([]string{"node"}, nodePorts) {
		w.requireHost(t, y, 3, "remote1")
	}
	for _, y := range w.ways([]string{"outside1"}, nodePorts) {
		if w.under.Proxy { // it accepts each connection
			break
		}
		if o := w.probe(y).Send(t.Context()); o.Kind != netnstest.Dropped {
			t.Errorf("%s: no endpoint is here, got %s", y, o)
		}
	}

	w.apply(t, with("remote1", "pod2"))
	for _, y := range w.ways([]string{"outside1"}, nodePorts) {
		w.requireHost(t, y, 3, "pod2")
	}
	for _, y := range w.ways([]string{"node"}, nodePorts) {
		if n := w.shares(t, y, 3); len(n) != 1 {
			t.Errorf("%s: more than one endpoint: %v", y, n)
		}
	}
}

// portsTwice gives a service a second port, at other ports of the endpoints.
func portsTwice(s *servicemodel.Service) {
	for _, p := range s.Ports {
		p.Name, p.Port, p.NodePort = p.Name+"-b", p.Port+1, p.NodePort+1
		s.Ports = append(s.Ports, p)
	}
}

// withPortB has endpoints serve the second port.
func withPortB(e *servicemodel.Endpoint) {
	for _, p := range e.Ports {
		p.Name, p.Port = p.Name+"-b", scenario.PortB
		e.Ports = append(e.Ports, p)
	}
}

func wholeServiceStays(bits4, bits6 uint8) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		with := func(hosts ...string) servicemodel.State {
			return state(podCIDRs(thisNode()), web(portsTwice, sticky(time.Hour),
				prefixed(bits4, bits6), wholeService), each(eps(hosts...), withPortB))
		}

		all := []string{"pod2", "pod3", "remote1", "remote2"}
		if !w.accepted(t, with(all...), backends.FieldAffinityService, "") {
			return
		}
		from, client := []string{"pod1", "outside1", "node"}, func(y way) string { return y.from }
		if bits4 > 0 {
			from, client = outsideClients, func(way) string { return "outside" }
		}

		// the node has several addresses
		isNode := func(key string, _ []string) bool { return strings.HasPrefix(key, "node") }
		first := w.together(t, from, client, 0, 0, 1)
		maps.DeleteFunc(first, isNode)
		requireTogether(t, first)

		// Clients of a removed endpoint get a new endpoint, and do not return to the old one.
		gone := first[slices.Sorted(maps.Keys(first))[0]][0]
		left := slices.DeleteFunc(slices.Clone(all), func(h string) bool { return h == gone })
		w.apply(t, with(left...))
		second := w.together(t, from, client, 1, 0, 1)
		maps.DeleteFunc(second, isNode)
		requireTogether(t, second, left...)
		w.apply(t, with(all...))
		third := w.together(t, from, client, 1, 0, 1)
		for key, was := range second {
			if !slices.Equal(was, third[key]) {
				t.Errorf("%s: had %v, and after %s came back %v", key, was, gone, third[key])
			}
			if f := first[key]; f[0] != gone && !slices.Equal(f, third[key]) {
				t.Errorf("%s: had %v all the time, now %v", key, f, third[key])
			}
		}
	}
}

// partlyServing has an endpoint that serves one of two ports.
func partlyServing(t *testing.T, w *world) {
	partly := append(each(eps("pod2"), withPortB), eps("pod3")...)
	s := state(podCIDRs(thisNode()), web(portsTwice, sticky(time.Hour), wholeService), partly)
	if !w.accepted(t, s, backends.FieldAffinityService, "") {
		return
	}
	for _, f := range families {
		for range 4 {
			w.shares(t, overTCP(cluster, f), 3)
			b := overTCP(cluster.on(servicePort+1), f)
			if count := w.shares(t, b, 5); count[serverName("pod2", scenario.PortB)] != 5 {
				t.Errorf("%s: only pod2 serves it: %v", b, count)
			}
		}
	}
}
