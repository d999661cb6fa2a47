package mirror

import (
	"hash/maphash"
	"net/netip"

	"github.com/kernlb/kernlb/conntrack"
)

// addrBytes is an address of one family.
type addrBytes interface{ [4]byte | [16]byte }

// end is one end of a flow.
type end[A addrBytes] struct {
	addr A
	port uint16
}

func packEnd[A addrBytes](a netip.AddrPort) end[A] {
	e := end[A]{port: a.Port()}
	from := a.Addr().As16()
	for i := range len(e.addr) {
		e.addr[i] = from[len(from)-len(e.addr)+i]
	}
	return e
}

func (e *end[A]) unpack() netip.AddrPort {
	if len(e.addr) == 4 {
		return netip.AddrPortFrom(
			netip.AddrFrom4([4]byte{e.addr[0], e.addr[1], e.addr[2], e.addr[3]}), e.port)
	}
	var b [16]byte
	for i := range len(e.addr) {
		b[i] = e.addr[i]
	}
	return netip.AddrPortFrom(netip.AddrFrom16(b), e.port)
}

// path identifies flows that were sent to one place and are answered from one: a frontend and an
// endpoint, or twice the same address if nothing translates them.
type path[A addrBytes] struct {
	dst, endpoint end[A]
	zones         [2]uint16 // of the original direction, and of the reply
	protocol      conntrack.Protocol
}

func packPath[A addrBytes](f *conntrack.Flow) path[A] {
	return path[A]{
		dst: packEnd[A](f.Original.Dst), endpoint: packEnd[A](f.Reply.Src),
		zones: [2]uint16{f.Original.Zone, f.Reply.Zone}, protocol: f.Protocol,
	}
}

// first returns the path at the head of the list of paths to the same place: the path of
// untranslated flows in the default zone.
func (p path[A]) first() path[A] {
	p.endpoint, p.zones = p.dst, [2]uint16{}
	return p
}

// flow returns the known part of a flow on the path: everything but its client, and the address
// that masquerades the client.
func (p *path[A]) flow() conntrack.Flow {
	return conntrack.Flow{
		Protocol: p.protocol,
		Original: conntrack.Tuple{Dst: p.dst.unpack(), Zone: p.zones[0]},
		Reply:    conntrack.Tuple{Src: p.endpoint.unpack(), Zone: p.zones[1]},
	}
}

// pathItem is a path and its flows. The paths to one place are a list, see [path.first].
type pathItem[A addrBytes] struct {
	path[A]
	flows      uint32 // the number of the first
	next, prev uint32 // paths
}

// flowItem is a flow of a path.
type flowItem[A addrBytes] struct {
	client     end[A]
	id         uint32
	path       uint32
	next, prev uint32 // flows of the path
}

// familyIndex notes the flows of one family. The zero value is not ready for use, see
// [newFamilyIndex].
type familyIndex[A addrBytes] struct {
	seed  maphash.Seed
	paths hashTable[pathItem[A]]
	flows hashTable[flowItem[A]]
}

func newFamilyIndex[A addrBytes]() familyIndex[A] {
	seed := maphash.MakeSeed()
	x := familyIndex[A]{seed: seed}
	x.paths.hash = func(p *pathItem[A]) uint32 { return uint32(maphash.Comparable(seed, p.path)) }
	x.flows.hash = func(f *flowItem[A]) uint32 { return f.id } // which is a hash already
	return x
}

// findPath returns the number of a path, 0 if there is none.
func (x *familyIndex[A]) findPath(p path[A]) uint32 {
	hash := uint32(maphash.Comparable(x.seed, p))
	return x.paths.find(hash, func(i *pathItem[A]) bool { return i.path == p })
}

// findFlow returns the number of a flow, 0 if there is none.
func (x *familyIndex[A]) findFlow(f *conntrack.Flow) uint32 {
	p, client := packPath[A](f), packEnd[A](f.Original.Src)
	return x.flows.find(f.ID, func(i *flowItem[A]) bool {
		return i.id == f.ID && i.client == client && x.paths.at(i.path).path == p
	})
}

// add notes a flow, unless it is noted.
func (x *familyIndex[A]) add(f *conntrack.Flow) {
	if x.findFlow(f) != 0 {
		return
	}
	at := x.ensurePath(packPath[A](f))
	first := x.paths.at(at).flows
	i := x.flows.add(flowItem[A]{client: packEnd[A](f.Original.Src), id: f.ID, path: at,
		next: first})
	if first != 0 {
		x.flows.at(first).prev = i
	}
	x.paths.at(at).flows = i
}

// ensurePath returns the number of a path, and makes it if there is none.
func (x *familyIndex[A]) ensurePath(p path[A]) uint32 {
	if at := x.findPath(p); at != 0 {
		return at
	}
	if p == p.first() {
		return x.paths.add(pathItem[A]{path: p})
	}
	first := x.ensurePath(p.first())
	second := x.paths.at(first).next
	at := x.paths.add(pathItem[A]{path: p, next: second, prev: first})
	x.paths.at(first).next = at
	if second != 0 {
		x.paths.at(second).prev = at
	}
	return at
}

// remove forgets a flow, if it is noted.
func (x *familyIndex[A]) remove(f *conntrack.Flow) {
	i := x.findFlow(f)
	if i == 0 {
		return
	}
	item := *x.flows.at(i)
	if item.prev != 0 {
		x.flows.at(item.prev).next = item.next
	} else {
		x.paths.at(item.path).flows = item.next
	}
	if item.next != 0 {
		x.flows.at(item.next).prev = item.prev
	}
	x.flows.remove(i)
	x.dropPath(item.path)
}

// dropPath forgets a path that nothing needs any more.
func (x *familyIndex[A]) dropPath(at uint32) {
	p := *x.paths.at(at)
	first := p.path == p.first()
	if p.flows != 0 || first && p.next != 0 {
		return
	}
	if p.prev != 0 {
		x.paths.at(p.prev).next = p.next
	}
	if p.next != 0 {
		x.paths.at(p.next).prev = p.prev
	}
	x.paths.remove(at)
	if !first {
		x.dropPath(p.prev)
	}
}

// flow returns the known part of the flow with a number. It lacks the address that masquerades the
// client. ok is false if no flow has the number any more. The number may belong to another flow
// than before.
func (x *familyIndex[A]) flow(i uint32) (conntrack.Flow, bool) {
	item := x.flows.at(i)
	if item.path == 0 {
		return conntrack.Flow{}, false
	}
	f := x.paths.at(item.path).flow()
	f.ID, f.Original.Src = item.id, item.client.unpack()
	f.Reply.Dst = f.Original.Src
	return f, true
}

// to yields the numbers of the flows to a place on stale paths.
func (x *familyIndex[A]) to(place conntrack.FrontendKey, stale func(*conntrack.Flow) bool,
	yield func(uint32)) {
	dst := packEnd[A](netip.AddrPortFrom(place.Addr, place.Port))
	first := path[A]{dst: dst, endpoint: dst, protocol: place.Protocol}
	for at := x.findPath(first); at != 0; at = x.paths.at(at).next {
		p := x.paths.at(at)
		if f := p.flow(); !stale(&f) {
			continue
		}
		for i := p.flows; i != 0; i = x.flows.at(i).next {
			yield(i)
		}
	}
}

// from yields the numbers of the untranslated stale flows from one of the ports. It examines all
// flows, which takes some nanoseconds for each.
func (x *familyIndex[A]) from(ports *portSet, stale func(*conntrack.Flow) bool,
	yield func(uint32)) {
	for i := uint32(1); i <= x.flows.used; i++ {
		item := x.flows.at(i)
		if !ports[item.client.port] || item.path == 0 {
			continue
		}
		if p := x.paths.at(item.path); p.dst != p.endpoint {
			continue
		}
		if f, _ := x.flow(i); stale(&f) {
			yield(i)
		}
	}
}

// portSet has the ports that are true in it.
type portSet [1 << 16]bool
