package nftables

import (
	"bytes"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// A reading that knows what is wanted asks the kernel for the elements of that. It judges by units:
// what is there of a unit as wanted, apart from the endpoints, needs no further reading.

// unit are the frontends of one service port in one family. They share pools.
type unit []*servicemodel.Frontend

// unitsOf returns the units of a table in one family.
func unitsOf(f *nft.Family, t *servicemodel.Table) []unit {
	var l []unit
	for fe := range shared.Of(t).Frontends() {
		if fe.Key.Family() != f.Model {
			continue
		}
		if u := unitOf(f, t, fe.Service); u[0].Key == fe.Key {
			l = append(l, u)
		}
	}
	return l
}

// unitOf returns the unit of a service port, empty if there is none.
func unitOf(f *nft.Family, t *servicemodel.Table, port servicemodel.PortName) unit {
	all := shared.Of(t).FrontendsOf(port) // sorted: those of one family stand together
	from := 0
	for from < len(all) && all[from].Key.Family() != f.Model {
		from++
	}
	to := from
	for to < len(all) && all[to].Key.Family() == f.Model {
		to++
	}
	return unit(all[from:to])
}

// expressible reports whether the backend can express a unit: only then do its elements say what it
// is.
func (u unit) expressible(t *servicemodel.Table) bool {
	ok := true
	for _, fe := range u {
		checkFrontend(fe, func(string, string, string, string) { ok = false })
		if !hasPools(t, fe) {
			ok = false
		}
		internal, external := shared.Of(t).PoolsOf(fe)
		for _, p := range []*servicemodel.Pool{internal, external} {
			if p != nil && slotCount(p) > maxSlots {
				ok = false
			}
		}
	}
	return ok
}

// hasPools reports whether a table has the pools that a frontend balances over.
func hasPools(t *servicemodel.Table, fe *servicemodel.Frontend) bool {
	internal, external := shared.Of(t).PoolsOf(fe)
	return (internal != nil || !fe.Internal.Balances()) &&
		(external != nil || !fe.External.Balances() || fe.External == fe.Internal)
}

// job is a part of what is asked for: units, or addresses of a set.
type job struct {
	units []unit
	set   string
	addrs []netip.Addr
}

// asked is an element that the kernel is asked for, and the answer.
type asked struct {
	set   int // its position in the sets of the table; -1 if that has no such set
	want  nft.Elem
	found bool
	same  bool   // what was found is as wanted
	data  []byte // what was found, where it is not as wanted
	ud    []byte
}

// answer notes what the kernel says.
func (a *asked) answer(e nft.Elem) {
	if !bytes.Equal(e.Key, a.want.Key) || !bytes.Equal(e.KeyEnd, a.want.KeyEnd) {
		return // another range that begins elsewhere and holds the key
	}
	a.found = true
	a.same = bytes.Equal(e.Data, a.want.Data) && (bytes.Equal(e.UserData, a.want.UserData) ||
		nft.CommentOf(e.UserData) == nft.CommentOf(a.want.UserData))
	if !a.same {
		a.data, a.ud = bytes.Clone(e.Data), bytes.Clone(e.UserData)
	}
}

// elem is the element as it was found. Its bytes are only lent.
func (a *asked) elem() nft.Elem {
	e := a.want
	if !a.same {
		e.Data, e.UserData = a.data, a.ud
	}
	return e
}

// unitRun says which elements of a chunk are those of a unit.
type unitRun struct {
	unit     unit
	from, to int
}

// slotRun says which elements of a chunk are the slots of a pool, as one frontend has them.
type slotRun struct {
	pool     *servicemodel.Pool
	from, to int
}

// chunk is a number of elements to ask for at once. It is reused for its memory.
type chunk struct {
	elems []asked
	bytes []byte // of their keys and so on
	units []unitRun
	slots []slotRun // of all units, in order
}

func (c *chunk) reset() {
	c.elems, c.bytes, c.units, c.slots = c.elems[:0], c.bytes[:0], c.units[:0], c.slots[:0]
}

// keep copies bytes.
func (c *chunk) keep(b []byte) []byte {
	if b == nil {
		return nil
	}
	at := len(c.bytes)
	c.bytes = append(c.bytes, b...)
	return c.bytes[at:len(c.bytes):len(c.bytes)]
}

// add adds an element of a set.
func (c *chunk) add(set int, e nft.Elem) {
	c.elems = append(c.elems, asked{set: set, want: nft.Elem{
		Key: c.keep(e.Key), KeyEnd: c.keep(e.KeyEnd), Data: c.keep(e.Data),
		UserData: c.keep(e.UserData)}})
}

// addAddr adds an address of a set.
func (c *chunk) addAddr(s *sift, set string, a netip.Addr) {
	var key [32]byte
	c.add(s.position(set), nft.Elem{Key: appendAddrKey(key[:0], set, a)})
}

// addUnit adds all elements of a unit.
func (c *chunk) addUnit(s *sift, w *writer, u unit) {
	from := len(c.elems)
	to := func(name string, e nft.Elem) { c.add(s.position(name), e) }
	for _, fe := range u {
		w.frontend(s.want, fe, to)
		internal, external := shared.Of(s.want).PoolsOf(fe)
		for i, p := range []*servicemodel.Pool{internal, external} {
			if p == nil {
				continue
			}
			begin := len(c.elems)
			w.slots(fe, i == 1, nil, p, nil, to)
			c.slots = append(c.slots, slotRun{p, begin, len(c.elems)})
		}
	}
	c.units = append(c.units, unitRun{u, from, len(c.elems)})
}

// findings are what became of the units and addresses that were asked for.
type findings struct {
	found []int // by set, how many of the elements asked for are there
	// gone are the wanted frontends that are not there or not whole. Elements that are there of
	// them are left over.
	gone []*servicemodel.Frontend
	// pools are those of whole units that are not as wanted.
	pools []servicemodel.PoolChange
	// addrs are the wanted addresses that are not there, by set.
	addrs map[string][]netip.Addr
	left  []leftover
}

// leftover is an element without a place so far.
type leftover struct {
	set  string
	elem nft.Elem
}

// judge sorts the units of a chunk. With force, none counts as whole.
func (r *findings) judge(s *sift, c *chunk, force bool) {
	slots := c.slots
	for _, u := range c.units {
		elems := c.elems[u.from:u.to]
		n := 0
		for n < len(slots) && slots[n].to <= u.to {
			n++
		}
		if !r.whole(s, c, elems, slots[:n]) || force {
			r.gone = append(r.gone, u.unit...)
			r.leave(s, elems)
		}
		slots = slots[n:]
		for j := range elems {
			if elems[j].found {
				r.found[elems[j].set]++
			}
		}
	}
}

// judgeAddrs notes which addresses are not there.
func (r *findings) judgeAddrs(j *job, c *chunk) {
	elems := c.elems[len(c.elems)-len(j.addrs):]
	for i, a := range j.addrs {
		if elems[i].found {
			r.found[elems[i].set]++
		} else {
			r.addrs[j.set] = append(r.addrs[j.set], a)
		}
	}
}

// merge adds what others found.
func (r *findings) merge(o *findings) {
	for i, n := range o.found {
		r.found[i] += n
	}
	r.gone = append(r.gone, o.gone...)
	r.pools = append(r.pools, o.pools...)
	r.left = append(r.left, o.left...)
	for set, l := range o.addrs {
		r.addrs[set] = append(r.addrs[set], l...)
	}
}

// leave keeps the elements that were found.
func (r *findings) leave(s *sift, elems []asked) {
	for i := range elems {
		if elems[i].found {
			r.left = append(r.left, leftover{s.sets[elems[i].set].Name, cloneElem(elems[i].elem())})
		}
	}
}

// whole reports whether all elements of a unit are there, and as wanted but for the endpoints in
// slots, and notes which pools have other endpoints than wanted.
func (r *findings) whole(s *sift, c *chunk, elems []asked, slots []slotRun) bool {
	for i := range elems {
		if !elems[i].found || !elems[i].same && s.sets[elems[i].set].Data == nil {
			return false
		}
	}
	var read []*servicemodel.Pool
	for _, run := range slots {
		p := poolIn(s.f, c.elems[run.from:run.to], run.pool)
		if p == nil {
			return false
		}
		for _, other := range read { // another frontend's view of the same pool
			if other.ID == p.ID && !other.Equal(p) {
				return false
			}
		}
		read = append(read, p)
	}
	for i, p := range read {
		if p != slots[i].pool && !p.Equal(slots[i].pool) {
			r.pools = append(r.pools, servicemodel.PoolChange{Old: slots[i].pool, New: p})
		}
	}
	return true
}

// poolIn returns the pool that the slots of a frontend say, want itself if it is that; nil if they
// make no sense.
func poolIn(f *nft.Family, slots []asked, want *servicemodel.Pool) *servicemodel.Pool {
	same := want.Scheduler == servicemodel.SchedulerDefault &&
		want.Forwarding == servicemodel.ForwardNAT
	for i := range slots {
		same = same && slots[i].same
	}
	if same {
		return want
	}
	p := &servicemodel.Pool{ID: want.ID}
	for i := range slots {
		data := slots[i].elem().Data
		ep, ok := endpointIn(f, data)
		if !ok {
			return nil
		}
		appendSlot(p, ep)
	}
	return p
}

// endpointIn decodes an endpoint, which must be encoded as ours are.
func endpointIn(f *nft.Family, data []byte) (netip.AddrPort, bool) {
	d := nft.Reader{Bytes: data}
	ep := d.Endpoint(f.AddrLen)
	var again [32]byte
	return ep, d.Done() && bytes.Equal(nft.AppendEndpoint(again[:0], ep), data)
}

// appendSlot adds one element's endpoint to a pool: those that follow each other are one slot with
// a weight.
func appendSlot(p *servicemodel.Pool, ep netip.AddrPort) {
	if n := len(p.Slots); n > 0 && p.Slots[n-1].Endpoint == ep {
		p.Slots[n-1].Weight++
		return
	}
	p.Slots = append(p.Slots, servicemodel.Slot{Endpoint: ep, Weight: 1})
}

// cloneElem copies the bytes of an element.
func cloneElem(e nft.Elem) nft.Elem {
	all := make([]byte, 0, len(e.Key)+len(e.KeyEnd)+len(e.Data)+len(e.UserData))
	for _, field := range []*[]byte{&e.Key, &e.KeyEnd, &e.Data, &e.UserData} {
		if *field == nil {
			continue
		}
		at := len(all)
		all = append(all, *field...)
		*field = all[at:len(all):len(all)]
	}
	return e
}
