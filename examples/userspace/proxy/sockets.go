package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// where is the protocol, address and port that a socket is bound to.
type where struct {
	protocol servicemodel.Protocol
	addr     netip.AddrPort
}

func (w where) String() string { return w.addr.String() + "/" + w.protocol.String() }

func (w where) compare(o where) int {
	return cmp.Or(w.addr.Compare(o.addr), cmp.Compare(w.protocol, o.protocol))
}

// anywhere returns the same port at all addresses of the family.
func (w where) anywhere() where {
	all := netip.IPv6Unspecified()
	if w.addr.Addr().Is4() {
		all = netip.IPv4Unspecified()
	}
	return where{w.protocol, netip.AddrPortFrom(all, w.addr.Port())}
}

// excludes reports whether only one of two sockets can be open.
func (w where) excludes(o where) bool {
	return w == o || w.anywhere() == o.anywhere() && (w == w.anywhere() || o == o.anywhere())
}

// claim is a frontend that needs a socket.
type claim struct {
	where
	service servicemodel.PortName
	kind    servicemodel.Kind
	dst     netip.AddrPort // the address to which clients of the socket connect
}

// localhost is the address at which node ports answer the node itself, if its rules say so.
var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// claims returns the sockets that the frontends of a table need. A frontend that sends no client to
// an endpoint needs no socket. Claims with open sockets come first.
func (b *Backend) claims(t *servicemodel.Table, node []netip.Addr) (all []claim) {
	rules := t.Rules()
	if rules.LocalhostNodePorts {
		node = append(slices.Clone(node), localhost)
	}
	for f := range t.Frontends() {
		if f.Key.Protocol == servicemodel.SCTP || !f.Internal.Balances() && !f.External.Balances() {
			continue
		}
		addrs := []netip.Addr{f.Key.Addr}
		if f.Key.NodePort() {
			addrs = slices.DeleteFunc(slices.Clone(node), func(a netip.Addr) bool {
				return servicemodel.FamilyOf(a) != f.Key.Family() || !within(a, rules.NodePorts)
			})
		}

		for _, a := range addrs {
			dst := netip.AddrPortFrom(a, f.Key.Port)
			if at, ok := b.cfg.Map.At(dst); ok {
				all = append(all, claim{where{f.Key.Protocol, at}, f.Service, f.Kind, dst})
			}
		}
	}

	order := map[bool]int{true: 0, false: 1} // by whether a claim has its socket
	slices.SortFunc(all, func(x, y claim) int {
		return cmp.Or(cmp.Compare(order[b.serves(x)], order[b.serves(y)]),
			x.compare(y.where), x.dst.Compare(y.dst))
	})

	return all
}

// serves reports whether a claim has its socket.
func (b *Backend) serves(k claim) bool {
	s := b.sockets[k.where]
	return s != nil && s.dst == k.dst
}

// within reports whether an address is in one of the ranges.
func within(a netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// edit is the work of a commit: the sockets to open and close, and the change set. It is a
// [backends.Plan].
type edit struct {
	refused []error // claims that exclude an open socket, or one to open
	open    []claim // sorted, as is close
	close   []where
	changes *servicemodel.ChangeSet // nil if only the sockets are compared
}

// edit compares the sockets that a table needs on a node with the open sockets.
func (b *Backend) edit(
	t *servicemodel.Table, node []netip.Addr, changes *servicemodel.ChangeSet,
) edit {
	e := edit{changes: changes}
	want := map[where]claim{}
	ports := map[where]claim{} // one of the claims to a port of a family
	for _, k := range b.claims(t, node) {
		rival, taken := want[k.where]
		if taken && rival.dst == k.dst {
			continue
		}
		if !taken {
			rival, taken = want[k.anywhere()]
		}
		if !taken && k.where == k.anywhere() {
			rival, taken = ports[k.where]
		}
		if taken {
			e.refused = append(e.refused, &backends.CollisionError{Backend: Name,
				Service: k.service.Name, Object: fmt.Sprintf(
					"the socket at %v for %v, which excludes that at %v for %v of %v,", k.where,
					k.dst, rival.where, rival.dst, rival.service)})
			continue
		}

		want[k.where], ports[k.anywhere()] = k, k
	}

	for _, w := range slices.SortedFunc(maps.Keys(b.sockets), where.compare) {
		if !b.serves(want[w]) {
			e.close = append(e.close, w)
		}
	}

	for _, w := range slices.SortedFunc(maps.Keys(want), where.compare) {
		if !b.serves(want[w]) {
			e.open = append(e.open, want[w])
		}
	}

	return e
}

func (e edit) sockets() int { return len(e.open) + len(e.close) }

// Stats counts the lines of the plan as messages, and sockets as elements.
func (e edit) Stats() backends.Stats {
	return backends.Stats{Messages: strings.Count(e.String(), "\n"), Elements: e.sockets()}
}

// String returns a line for each socket that is opened or closed, and the change set.
func (e edit) String() string {
	var s string
	for _, w := range e.close {
		s += "close " + w.String() + "\n"
	}
	for _, k := range e.open {
		s += fmt.Sprintf("listen %v for %v at %v\n", k.where, k.service, k.dst)
	}
	if e.changes != nil {
		s += e.changes.String()
	}
	return s
}
