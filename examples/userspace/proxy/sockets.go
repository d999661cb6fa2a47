package proxy

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
)

// where is what a socket is bound to.
type where struct {
	protocol servicemodel.Protocol
	addr     netip.AddrPort
}

func (w where) String() string { return w.addr.String() + "/" + w.protocol.String() }

func (w where) compare(o where) int {
	return cmp.Or(w.addr.Compare(o.addr), cmp.Compare(w.protocol, o.protocol))
}

// claim is a frontend that wants a socket.
type claim struct {
	frontend servicemodel.FrontendKey
	service  servicemodel.PortName
	kind     servicemodel.Kind
	dst      netip.AddrPort // what clients of the socket ask for
}

// localhost is where node ports answer to the node itself, if its rules say so.
var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// claims yields the sockets that a frontend wants: none if it sends nobody to an endpoint.
func (b *Backend) claims(
	f *servicemodel.Frontend, r *servicemodel.Rules, node []netip.Addr,
) iter.Seq2[where, claim] {
	return func(yield func(where, claim) bool) {
		if f == nil || !f.Internal.Balances() && !f.External.Balances() {
			return
		}
		addrs := []netip.Addr{f.Key.Addr}
		if f.Key.NodePort() {
			addrs = nodePortAddrs(f.Key.Family(), r, node)
		}
		for _, a := range addrs {
			dst := netip.AddrPortFrom(a, f.Key.Port)
			at, ok := b.cfg.Map.At(dst)
			if ok && !yield(where{f.Key.Protocol, at}, claim{f.Key, f.Service, f.Kind, dst}) {
				return
			}
		}
	}
}

// nodePortAddrs returns the addresses of the node at which node ports answer.
func nodePortAddrs(
	family servicemodel.Family, r *servicemodel.Rules, node []netip.Addr,
) []netip.Addr {
	if r.LocalhostNodePorts {
		node = append(slices.Clone(node), localhost)
	}
	return slices.DeleteFunc(slices.Clone(node), func(a netip.Addr) bool {
		return servicemodel.FamilyOf(a) != family ||
			!slices.ContainsFunc(r.NodePorts, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// edit is what a change means for the sockets.
type edit struct {
	claims map[where][]claim // of the sockets that are touched, as they will be
	open   []where           // sorted
	close  []where           // sorted
}

// edit works out what a change set means. All sockets are touched if the rules change, or if what
// is open is not what it should be.
func (b *Backend) edit(c *servicemodel.ChangeSet) edit {
	e := edit{claims: map[where][]claim{}}
	old, new := c.Old.Rules(), c.New.Rules()
	if b.drifted || c.Rules != nil {
		for w := range b.sockets {
			e.claims[w] = nil
		}
		for f := range c.New.Frontends() {
			b.add(&e, f, &new)
		}
	} else {
		for _, f := range c.Frontends {
			for w := range b.claims(f.Old, &old, b.node) {
				e.claims[w] = slices.DeleteFunc(b.claimed(&e, w), func(k claim) bool {
					return k.frontend == f.Old.Key
				})
			}
		}
		for _, f := range c.Frontends {
			b.add(&e, f.New, &new)
		}
	}
	b.compare(&e)
	return e
}

// compare works out which of the sockets that are touched are to be opened and closed.
func (b *Backend) compare(e *edit) {
	for _, w := range slices.SortedFunc(maps.Keys(e.claims), where.compare) {
		s, claims := b.sockets[w], e.claims[w]
		stays := s != nil && !s.broken && len(claims) > 0 && claims[0].dst == s.dst
		if s != nil && !stays {
			e.close = append(e.close, w)
		}
		if len(claims) > 0 && !stays {
			e.open = append(e.open, w)
		}
	}
}

// add adds the claims of a frontend.
func (b *Backend) add(e *edit, f *servicemodel.Frontend, r *servicemodel.Rules) {
	for w, k := range b.claims(f, r, b.node) {
		e.claims[w] = append(b.claimed(e, w), k)
	}
}

// claimed returns a copy of the claims to a socket, with those of the edit.
func (b *Backend) claimed(e *edit, w where) []claim {
	if l, ok := e.claims[w]; ok {
		return l
	}
	if s := b.sockets[w]; s != nil {
		return slices.Clone(s.claims)
	}
	return nil
}

// String returns a line for each socket that is opened or closed.
func (e edit) String() string {
	var s string
	for _, w := range e.close {
		s += "close " + w.String() + "\n"
	}
	for _, w := range e.open {
		k := e.claims[w][0]
		s += fmt.Sprintf("listen %v for %v at %v\n", w, k.service, k.dst)
	}
	return s
}
