package conntrack

import (
	"hash/maphash"
	"net/netip"
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

// lane is what flows have in common that were sent to one place and are answered from one: a
// frontend and an endpoint, or twice the same if nothing translates them.
type lane[A addrBytes] struct {
	dst, endpoint end[A]
	zones         [2]uint16 // of the original direction, and of the reply
	protocol      Protocol
}

func packLane[A addrBytes](f *Flow) lane[A] {
	return lane[A]{
		dst: packEnd[A](f.Original.Dst), endpoint: packEnd[A](f.Reply.Src),
		zones: [2]uint16{f.Original.Zone, f.Reply.Zone}, protocol: f.Protocol,
	}
}

// direct returns the lane of flows to the same place that nothing translates.
func (p lane[A]) direct() lane[A] {
	p.endpoint = p.dst
	return p
}

// flow returns what is known of a flow on the lane: all but its client, and whoever masquerades
// that.
func (p *lane[A]) flow() Flow {
	return Flow{
		Protocol: p.protocol,
		Original: Tuple{Dst: p.dst.unpack(), Zone: p.zones[0]},
		Reply:    Tuple{Src: p.endpoint.unpack(), Zone: p.zones[1]},
	}
}

// laneItem is a lane and its flows. The lanes to one place are a list, which begins with the direct
// lane.
type laneItem[A addrBytes] struct {
	lane[A]
	flows      uint32 // the number of the first
	next, prev uint32 // lanes
}

// flowItem is a flow of a lane.
type flowItem[A addrBytes] struct {
	client     end[A]
	id         uint32
	lane       uint32
	next, prev uint32 // flows of the lane
}

// book notes the flows of one family. The zero book is not ready for use, see [newBook].
type book[A addrBytes] struct {
	lanes shelf[laneItem[A]]
	flows shelf[flowItem[A]]
}

func newBook[A addrBytes]() book[A] {
	seed := maphash.MakeSeed()
	var b book[A]
	b.lanes.hash = func(p *laneItem[A]) uint32 { return uint32(maphash.Comparable(seed, p.lane)) }
	b.flows.hash = func(f *flowItem[A]) uint32 { return f.id } // which is a hash already
	return b
}

// findLane returns the number of a lane, 0 if there is none.
func (b *book[A]) findLane(p lane[A]) uint32 {
	return b.lanes.find(b.lanes.hash(&laneItem[A]{lane: p}), func(i *laneItem[A]) bool {
		return i.lane == p
	})
}

// findFlow returns the number of a flow, 0 if there is none.
func (b *book[A]) findFlow(f *Flow) uint32 {
	p, client := packLane[A](f), packEnd[A](f.Original.Src)
	return b.flows.find(f.ID, func(i *flowItem[A]) bool {
		return i.id == f.ID && i.client == client && b.lanes.at(i.lane).lane == p
	})
}

// add notes a flow, unless it is noted.
func (b *book[A]) add(f *Flow) {
	if b.findFlow(f) != 0 {
		return
	}
	at := b.ensureLane(packLane[A](f))
	first := b.lanes.at(at).flows
	i := b.flows.add(flowItem[A]{client: packEnd[A](f.Original.Src), id: f.ID, lane: at,
		next: first})
	if first != 0 {
		b.flows.at(first).prev = i
	}
	b.lanes.at(at).flows = i
}

// ensureLane returns the number of a lane, and makes it if there is none.
func (b *book[A]) ensureLane(p lane[A]) uint32 {
	if at := b.findLane(p); at != 0 {
		return at
	}
	if p == p.direct() {
		return b.lanes.add(laneItem[A]{lane: p})
	}
	first := b.ensureLane(p.direct())
	second := b.lanes.at(first).next
	at := b.lanes.add(laneItem[A]{lane: p, next: second, prev: first})
	b.lanes.at(first).next = at
	if second != 0 {
		b.lanes.at(second).prev = at
	}
	return at
}

// remove forgets a flow, if it is noted.
func (b *book[A]) remove(f *Flow) {
	i := b.findFlow(f)
	if i == 0 {
		return
	}
	item := *b.flows.at(i)
	if item.prev != 0 {
		b.flows.at(item.prev).next = item.next
	} else {
		b.lanes.at(item.lane).flows = item.next
	}
	if item.next != 0 {
		b.flows.at(item.next).prev = item.prev
	}
	b.flows.remove(i)
	b.dropLane(item.lane)
}

// dropLane forgets a lane that nothing needs any more.
func (b *book[A]) dropLane(at uint32) {
	p := *b.lanes.at(at)
	direct := p.lane == p.direct()
	if p.flows != 0 || direct && p.next != 0 {
		return
	}
	if p.prev != 0 {
		b.lanes.at(p.prev).next = p.next
	}
	if p.next != 0 {
		b.lanes.at(p.next).prev = p.prev
	}
	b.lanes.remove(at)
	if !direct {
		b.dropLane(p.prev)
	}
}

// flow returns what is known of the flow with a number: who masquerades its client is not. It is
// false if the number is of no flow any more, and may be of another one than before.
func (b *book[A]) flow(i uint32) (Flow, bool) {
	item := b.flows.at(i)
	if item.lane == 0 {
		return Flow{}, false
	}
	f := b.lanes.at(item.lane).flow()
	f.ID, f.Original.Src = item.id, item.client.unpack()
	f.Reply.Dst = f.Original.Src
	return f, true
}

// to yields the numbers of the flows to a place whose lane is stale.
func (b *book[A]) to(dst Flow, stale func(*Flow) bool, yield func(uint32)) {
	dst.Reply.Src = dst.Original.Dst
	for at := b.findLane(packLane[A](&dst)); at != 0; at = b.lanes.at(at).next {
		p := b.lanes.at(at)
		if f := p.flow(); !stale(&f) {
			continue
		}
		for i := p.flows; i != 0; i = b.flows.at(i).next {
			yield(i)
		}
	}
}

// from yields the numbers of the flows from one of the ports that nothing translates and that are
// stale. It passes over all flows, which takes some nanoseconds for each.
func (b *book[A]) from(ports *portSet, stale func(*Flow) bool, yield func(uint32)) {
	for i := uint32(1); i <= b.flows.used; i++ {
		item := b.flows.at(i)
		if !ports[item.client.port] || item.lane == 0 {
			continue
		}
		if p := b.lanes.at(item.lane); p.dst != p.endpoint {
			continue
		}
		if f, _ := b.flow(i); stale(&f) {
			yield(i)
		}
	}
}

// portSet has the ports that are true in it.
type portSet [1 << 16]bool
