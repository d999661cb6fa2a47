package dataplanetest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// affinityKindStories are about clients of one prefix, and about whole services. A backend that
// lacks them refuses them, by field, and is not asked about them.
var affinityKindStories = []story{
	{"clients of a prefix stay together", prefixStays},
	{"clients of a prefix inside and outside have endpoints of their own", prefixInsideAndOutside},
	{"a client has one endpoint at all ports of a service", wholeServiceStays(0, 0)},
	{"clients of a prefix have one endpoint at all ports of a service", wholeServiceStays(24, 64)},
	{"a client moves only at ports without its endpoint", partlyServing},
}

// accepted applies a state. It reports false if the backend refuses a value of the field, and
// nothing else.
func (w *world) accepted(t *testing.T, s servicemodel.State, field string) bool {
	t.Helper()
	table, err := servicemodel.Resolve(nil, w.under.expressible(s))
	must(t, err)
	problems := dataplane.Problems(w.backend.Check(servicemodel.Diff(nil, table)))
	for _, p := range problems {
		if p.Field != field {
			t.Fatalf("%s: %v", field, p.Err)
		}
	}
	if len(problems) > 0 {
		t.Logf("refused: %v", problems[0].Err)
		return false
	}
	w.apply(t, s)
	return true
}

// prefixed identifies clients by so many bits.
func prefixed(bits4, bits6 uint8) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) {
		s.SessionAffinity.Bits4, s.SessionAffinity.Bits6 = bits4, bits6
	}
}

func wholeService(s *servicemodel.Service) { s.SessionAffinity.WholeService = true }

// together asks all destinations in both families, and returns the hosts that answer each of the
// clients. of says which answers belong together.
func (w *world) together(t *testing.T, ports []uint16, clients []string,
	of func(from string, p servicemodel.Protocol, to netip.AddrPort) string) map[string][]string {
	t.Helper()
	given := map[string][]string{}
	for _, d := range destinations {
		for _, f := range families {
			for _, p := range w.under.protocols() {
				for _, from := range clients {
					for i, port := range ports {
						if d.port != servicePort {
							port = d.port + uint16(i)
						}
						to := netip.AddrPortFrom(d.addrs[f], port)
						for name := range w.shares(t, from, p, to, 3) {
							host, _, _ := strings.Cut(name, "/")
							key := fmt.Sprint(of(from, p, to), " IPv", 4+2*f)
							if !slices.Contains(given[key], host) {
								given[key] = append(given[key], host)
							}
						}
					}
				}
			}
		}
	}
	return given
}

// once sends one packet of each client and waits for its answer, because the first packets of
// several connections may race with one another.
func (w *world) once(t *testing.T, clients []string, port uint16) {
	t.Helper()
	for _, d := range destinations {
		for _, f := range families {
			for _, p := range w.under.protocols() {
				for _, from := range clients {
					at := port
					if d.port != servicePort {
						at = d.port
					}
					w.shares(t, from, p, netip.AddrPortFrom(d.addrs[f], at), 1)
				}
			}
		}
	}
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

// prefixStays asks with two clients of one prefix. If each has an endpoint of its own, they would
// agree at all frontends once in 10^14 times.
func prefixStays(t *testing.T, w *world) {
	with := func(hosts ...string) servicemodel.State {
		return state(podCIDRs(thisNode()), web(sticky(time.Hour), prefixed(24, 64)), eps(hosts...))
	}
	if !w.accepted(t, with("pod2", "pod3", "remote1", "remote2"), dataplane.FieldAffinityBits) {
		return
	}
	w.once(t, outsideClients, servicePort)
	ask := func() map[string][]string {
		return w.together(t, []uint16{servicePort}, outsideClients,
			func(_ string, p servicemodel.Protocol, to netip.AddrPort) string {
				return fmt.Sprint(p, to)
			})
	}
	first := ask()
	requireTogether(t, first)
	// Bits of all addresses of the network are not equal.
	w.apply(t, with("pod3", "remote1"))
	w.once(t, outsideClients, servicePort)
	requireTogether(t, ask(), "pod3", "remote1")
	for key, hosts := range ask() {
		if was := first[key][0]; (was == "pod3" || was == "remote1") && hosts[0] != was {
			t.Errorf("%s: was given %s, which is still there, now %v", key, was, hosts)
		}
	}
	w.apply(t, with("pod2"))
	requireTogether(t, ask(), "pod2")
}

// prefixInsideAndOutside asks from the node and from an outside client, which have one prefix. Only
// the outside client is confined to endpoints on this node.
func prefixInsideAndOutside(t *testing.T, w *world) {
	with := func(hosts ...string) servicemodel.State {
		return state(podCIDRs(thisNode()), web(sticky(time.Hour), prefixed(5, 16), externalLocal),
			eps(hosts...))
	}
	if !w.accepted(t, with("remote1", "pod2"), dataplane.FieldAffinityBits) {
		return
	}
	w.apply(t, with("remote1"))
	requireHost := func(from, host string, p servicemodel.Protocol, to netip.AddrPort) {
		t.Helper()
		if n := w.shares(t, from, p, to, 3)[serverName(host, PortA)]; n != 3 {
			t.Errorf("%s from %s to %s: %s answered %d of 3", p, from, to, host, n)
		}
	}
	each := func(f func(p servicemodel.Protocol, to netip.AddrPort)) {
		for _, family := range families {
			for _, p := range w.under.protocols() {
				f(p, netip.AddrPortFrom(nodeIP[family], nodePort))
			}
		}
	}
	each(func(p servicemodel.Protocol, to netip.AddrPort) {
		requireHost("node", "remote1", p, to)
		if w.under.Proxy { // it accepts each connection
			return
		}
		o := netnstest.Probe{From: w.hosts["outside1"], Proto: p, To: to}.Send(t.Context())
		if o.Kind != netnstest.Dropped {
			t.Errorf("%s from outside1 to %s: no endpoint is here, got %s", p, to, o)
		}
	})
	w.apply(t, with("remote1", "pod2"))
	each(func(p servicemodel.Protocol, to netip.AddrPort) {
		requireHost("outside1", "pod2", p, to)
		if n := w.shares(t, "node", p, to, 3); len(n) != 1 {
			t.Errorf("%s from node to %s: more than one endpoint: %v", p, to, n)
		}
	})
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
		p.Name, p.Port = p.Name+"-b", PortB
		e.Ports = append(e.Ports, p)
	}
}

func wholeServiceStays(bits4, bits6 uint8) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		with := func(hosts ...string) servicemodel.State {
			return state(podCIDRs(thisNode()), web(portsTwice, sticky(time.Hour),
				prefixed(bits4, bits6), wholeService), each(eps(hosts...), withPortB))
		}
		if !w.accepted(t, with("pod2", "pod3", "remote1", "remote2"),
			dataplane.FieldAffinityService) {
			return
		}
		from := []string{"pod1", "outside1", "node"}
		client := func(from string, _ servicemodel.Protocol, _ netip.AddrPort) string {
			return from
		}
		if bits4 > 0 {
			from = outsideClients
			client = func(string, servicemodel.Protocol, netip.AddrPort) string {
				return "outside"
			}
		}
		ports := []uint16{servicePort, servicePort + 1}
		ask := func() map[string][]string { return w.together(t, ports, from, client) }
		w.once(t, from, servicePort)
		first := ask()
		if bits4 == 0 {
			delete(first, "node IPv4") // the node has several addresses
			delete(first, "node IPv6")
		}
		requireTogether(t, first)

		// Clients of an endpoint that goes get another one, and do not go back to it.
		gone := first[slices.Sorted(maps.Keys(first))[0]][0]
		all := []string{"pod2", "pod3", "remote1", "remote2"}
		left := slices.DeleteFunc(slices.Clone(all), func(h string) bool { return h == gone })
		w.apply(t, with(left...))
		w.once(t, from, servicePort+1)
		second := ask()
		requireTogetherExcept(t, second, "node", left...)
		w.apply(t, with(all...))
		for key, hosts := range ask() {
			if was := second[key]; !strings.HasPrefix(key, "node") && !slices.Equal(was, hosts) {
				t.Errorf("%s: had %v, and after %s came back %v", key, was, gone, hosts)
			}
			if was := first[key]; len(was) == 1 && was[0] != gone && !slices.Equal(was, hosts) {
				t.Errorf("%s: had %v all the time, now %v", key, was, hosts)
			}
		}
	}
}

// requireTogetherExcept is requireTogether without a client.
func requireTogetherExcept(t *testing.T, given map[string][]string, client string,
	only ...string) {
	t.Helper()
	given = maps.Clone(given)
	maps.DeleteFunc(given, func(k string, _ []string) bool { return strings.HasPrefix(k, client) })
	requireTogether(t, given, only...)
}

// partlyServing has an endpoint that serves one of two ports.
func partlyServing(t *testing.T, w *world) {
	partly := append(each(eps("pod2"), withPortB), eps("pod3")...)
	s := state(podCIDRs(thisNode()), web(portsTwice, sticky(time.Hour), wholeService), partly)
	if !w.accepted(t, s, dataplane.FieldAffinityService) {
		return
	}
	for _, f := range families {
		for range 4 {
			b := netip.AddrPortFrom(clusterIP[f], servicePort+1)
			w.shares(t, "pod1", servicemodel.TCP, netip.AddrPortFrom(clusterIP[f], servicePort), 3)
			count := w.shares(t, "pod1", servicemodel.TCP, b, 5)
			if count[serverName("pod2", PortB)] != 5 {
				t.Errorf("%s: only pod2 serves it: %v", b, count)
			}
		}
	}
}
