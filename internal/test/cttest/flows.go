package cttest

//lint:file-ignore ST1001 helpers read like the tests that they serve, which import the package so

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/test/must"
)

// Key returns the key of a frontend at an address and port.
func Key(at string, p Protocol) FrontendKey { return KeyOf(AddrPort(at), p) }

// KeyOf is [Key] for an address and port.
func KeyOf(at netip.AddrPort, p Protocol) FrontendKey {
	return FrontendKey{Addr: at.Addr(), Port: at.Port(), Protocol: p}
}

// Client is the client of most flows.
const Client = "10.0.0.1:4000"

// Addr parses s, which must be a valid address.
func Addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// AddrPort parses s, which must be a valid address and port.
func AddrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// AddrPorts is [AddrPort] for each; never nil.
func AddrPorts(list ...string) []netip.AddrPort {
	out := make([]netip.AddrPort, len(list))
	for i, s := range list {
		out[i] = AddrPort(s)
	}
	return out
}

// NewFlow returns a flow from a client to dst that endpoint answers. seen is the client's address
// as the endpoint sees it. An empty endpoint means dst, and an empty seen means the client.
func NewFlow(p Protocol, client, dst, endpoint, seen string) Flow {
	if endpoint == "" {
		endpoint = dst
	}
	if seen == "" {
		seen = client
	}
	return Flow{
		Protocol: p,
		Original: Tuple{Src: AddrPort(client), Dst: AddrPort(dst)},
		Reply:    Tuple{Src: AddrPort(endpoint), Dst: AddrPort(seen)},
	}
}

// WithPort returns a with the i-th port above 1023. After the last port it continues with the next
// address.
func WithPort(a netip.AddrPort, i int) netip.AddrPort {
	addr := a.Addr()
	for ; i >= 64000; i -= 64000 {
		addr = addr.Next()
	}
	return netip.AddrPortFrom(addr, uint16(1024+i))
}

// Keys returns the sorted keys that identify the flows.
func Keys(flows []Flow) []string {
	out := make([]string, len(flows))
	for i, f := range flows {
		f.Timeout = 0
		out[i] = f.String()
	}

	slices.Sort(out)
	return out
}

// Pick returns one of several values at random.
func Pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// RandomFlow returns a flow among few addresses and ports, so that many are alike.
func RandomFlow(r *rand.Rand) Flow {
	v4, v6 := []string{"10.0.0.1", "10.0.0.2"}, []string{"fd00::1", "fd00::2"}
	from := Pick(r, v4, v6)
	end := func() netip.AddrPort {
		return netip.AddrPortFrom(Addr(Pick(r, from...)), Pick(r, uint16(53), 54))
	}
	zone := uint16(r.IntN(2))
	return Flow{
		Protocol: Pick(r, TCP, UDP, SCTP),
		Original: Tuple{Src: end(), Dst: end(), Zone: zone},
		Reply:    Tuple{Src: end(), Dst: end(), Zone: zone},
		Status:   Pick(r, 0, StatusAssured, StatusAssured|StatusSeenReply),
		Mark:     uint32(r.IntN(4)),
	}
}

// DNSChange is a change of a DNS service: one endpoint was replaced.
func DNSChange() Change {
	left, vip6 := AddrPorts("10.244.0.6:5353", "10.244.0.7:5353"), AddrPorts("[fd00:244::6]:5353")
	return Change{
		NodeAddrs: []netip.Addr{Addr("192.0.2.10"), Addr("192.0.2.11"), Addr("2001:db8::10")},
		Frontends: []Frontend{
			{Key: Key("10.96.0.10:53", UDP), Endpoints: left, Untranslated: true},
			{Key: Key("203.0.113.5:53", UDP), Endpoints: left, Untranslated: true},
			{Key: Key("0.0.0.0:30053", UDP), Endpoints: left, Untranslated: true},
			{Key: Key("[::]:30053", UDP), Endpoints: vip6, Untranslated: true},
			{Key: Key("[fd00:96::10]:53", UDP), Endpoints: vip6, Untranslated: true},
			// The service's second port was removed.
			{Key: Key("10.96.0.10:54", UDP)},
			// TCP connections to one endpoint are cut; another endpoint is being drained.
			{Key: Key("10.96.0.10:80", TCP), Endpoints: AddrPorts("10.244.0.6:8080"),
				Removed: AddrPorts("10.244.0.5:8080")},
			// Another service has the number of a node port at an address of the node. It did not
			// change.
			{Key: Key("192.0.2.11:30053", UDP), Removed: []netip.AddrPort{}},
		},
	}
}

// Class is the relation of a flow to a change, in one word.
type Class string

// The classes. Flows of the last three are stale.
const (
	Unrelated    Class = "unrelated"
	Current      Class = "current"
	Misdirected  Class = "misdirected"
	Untranslated Class = "untranslated"
	Backwards    Class = "backwards"
)

// Stale reports whether flows of the class should be deleted.
func (c Class) Stale() bool { return c != Unrelated && c != Current }

// Classify returns the class of a flow for a change. It is written independently of the tested
// code, and reads the whole change for each flow.
func Classify(c Change, f *Flow) Class {
	if f.Zone() != c.Zone {
		return Unrelated
	}
	exact := slices.IndexFunc(c.Frontends, func(cl Frontend) bool {
		return cl.Key == KeyOf(f.Original.Dst, f.Protocol)
	})
	if exact < 0 && slices.Contains(c.NodeAddrs, f.Original.Dst.Addr()) {
		exact = slices.IndexFunc(c.Frontends, func(cl Frontend) bool {
			return cl.Key.Addr.IsUnspecified() && cl.Key.EndPort == 0 &&
				cl.Key.Addr.Is4() == f.Original.Dst.Addr().Is4() &&
				cl.Key.Port == f.Original.Dst.Port() && cl.Key.Protocol == f.Protocol
		})
	}

	if exact < 0 {
		exact = rangeOf(c, f)
	}
	if exact < 0 {
		return Unrelated
	}
	frontend := c.Frontends[exact]
	goesTo := func(l []netip.AddrPort) bool {
		kept := netip.AddrPortFrom(f.Reply.Src.Addr(), 0)
		return slices.Contains(l, f.Reply.Src) || slices.Contains(l, kept) &&
			f.Reply.Src.Port() == f.Original.Dst.Port()
	}

	switch {
	case keeps(f, &frontend, goesTo(frontend.Endpoints)):
		return Current
	case !f.Translated() && frontend.Untranslated:
		return Untranslated
	case f.Translated() && (frontend.Removed == nil ||
		goesTo(frontend.Removed) || mapped(f, frontend.Key, frontend.Removed)):
		return Misdirected
	}

	return Current
}

// keeps reports whether an endpoint keeps a flow. listed says that it does unless it has a range.
func keeps(f *Flow, to *Frontend, listed bool) bool {
	if to.Shifted && to.Key.EndPort != 0 {
		return mapped(f, to.Key, to.Endpoints)
	}
	return listed
}

// mapped reports whether a flow to a range goes to the same place in the range of an endpoint.
func mapped(f *Flow, k FrontendKey, l []netip.AddrPort) bool {
	return slices.ContainsFunc(l, func(e netip.AddrPort) bool {
		return e.Addr() == f.Reply.Src.Addr() &&
			f.Reply.Src.Port() == e.Port()+f.Original.Dst.Port()-k.Port
	})
}

// rangeOf returns the index of the narrowest range to which a flow was sent, or -1. Of ranges of
// equal width, it returns the first. Ranges at the flow's address precede those of node addresses.
func rangeOf(c Change, f *Flow) int {
	at := f.Original.Dst.Addr()
	found := rangeAt(c, f, at)
	if found < 0 && slices.Contains(c.NodeAddrs, at) {
		any := netip.IPv4Unspecified()
		if at.Is6() {
			any = netip.IPv6Unspecified()
		}
		found = rangeAt(c, f, any)
	}
	return found
}

func rangeAt(c Change, f *Flow, at netip.Addr) int {
	found := -1
	for i, cl := range c.Frontends {
		k := cl.Key
		width := k.EndPort - k.Port
		if k.EndPort == 0 || k.Addr != at || k.Protocol != f.Protocol ||
			f.Original.Dst.Port()-k.Port > width {
			continue
		}

		best := c.Frontends[max(found, 0)].Key
		if than := best.EndPort - best.Port; found < 0 || width < than ||
			width == than && k.Port < best.Port {
			found = i
		}
	}

	return found
}

// RandomChange returns a change of frontends that are destinations of [RandomFlow].
func RandomChange(r *rand.Rand) Change {
	c := Change{NodeAddrs: []netip.Addr{Addr("10.0.0.2"), Addr("fd00::2")}, Zone: uint16(r.IntN(2))}
	for _, a := range []string{"10.0.0.1", "10.0.0.2", "0.0.0.0", "fd00::1", "::"} {
		for _, port := range []uint16{53, 54} {
			for _, p := range []Protocol{TCP, UDP, SCTP} {
				if r.IntN(3) > 0 {
					continue
				}
				own := []netip.AddrPort{AddrPort("10.0.0.1:53"), AddrPort("10.0.0.2:54")}
				if Addr(a).Is6() {
					own = AddrPorts("[fd00::1]:53", "[fd00::2]:54")
				}
				frontend := Frontend{Key: KeyOf(netip.AddrPortFrom(Addr(a), port), p),
					Endpoints: own[:r.IntN(3)], Untranslated: r.IntN(2) == 0}
				if r.IntN(2) == 0 {
					frontend.Removed = append([]netip.AddrPort{}, own[r.IntN(3):]...)
				}
				frontend.Shifted = r.IntN(4) == 0
				if k := &frontend.Key; r.IntN(3) == 0 {
					k.EndPort = k.Port + uint16(1+2*r.IntN(2))
					k.Port -= uint16(r.IntN(2))
					for _, l := range [][]netip.AddrPort{frontend.Endpoints, frontend.Removed} {
						for i, e := range l {
							l[i] = netip.AddrPortFrom(e.Addr(), e.Port()*uint16(r.IntN(2)))
						}
					}
				}

				c.Frontends = append(c.Frontends, frontend)
			}
		}
	}

	return c
}

// OK returns the result of a call that must not fail: OK(call())(t).
func OK[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

// ErrOf returns the error of a call.
func ErrOf[T any](_ T, err error) error { return err }
