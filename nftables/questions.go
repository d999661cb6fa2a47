package nftables

import (
	"bytes"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// A reading that knows the wanted table asks the kernel for its elements, service port by service
// port. If all elements of a service port exist as wanted, apart from its endpoints, it needs no
// further reading.

// servicePort are the frontends of one service port in one family. They share pools.
type servicePort []*servicemodel.Frontend

// portsOf returns the service ports of a table in one family.
func portsOf(f *nft.Family, t *servicemodel.Table) []servicePort {
	var l []servicePort
	for fe := range frontendsOf(t, f) {
		if u := portOf(f, t, fe.Service); u[0].Key == fe.Key {
			l = append(l, u)
		}
	}
	return l
}

// portOf returns the frontends of a service port, or none if the table has no such port.
func portOf(f *nft.Family, t *servicemodel.Table, port servicemodel.PortName) servicePort {
	all := nocopy.Of(t).FrontendsOf(port) // sorted: frontends of one family are adjacent
	from := 0
	for from < len(all) && all[from].Key.Family() != f.Model {
		from++
	}
	to := from
	for to < len(all) && all[to].Key.Family() == f.Model {
		to++
	}
	return servicePort(all[from:to])
}

// expressible reports whether the backend can express a service port. Only then can its elements
// identify it.
func (s servicePort) expressible(t *servicemodel.Table) bool {
	ok := true
	for _, fe := range s {
		ok = ok && rendering.KnownOrigins(fe.Masquerade) &&
			(fe.Sources == nil || !fe.Key.NodePort())
		internal, external := nocopy.Of(t).PoolsOf(fe)
		for _, p := range []*servicemodel.Pool{internal, external} {
			ok = ok && (p == nil || expressible(p))
		}
		ok = ok && hasPools(t, fe)
	}
	return ok
}

// hasPools reports whether a table has the pools of a frontend.
func hasPools(t *servicemodel.Table, fe *servicemodel.Frontend) bool {
	internal, external := nocopy.Of(t).PoolsOf(fe)
	return (internal != nil || !fe.Internal.Balances()) &&
		(external != nil || !fe.External.Balances() || fe.External == fe.Internal)
}

// question asks the kernel for one element, and holds the answer.
type question struct {
	set   int // the position of its set; -1 if the table has no such set
	want  nft.Elem
	found bool
	same  bool   // the element was found as wanted
	data  []byte // the data of the element that was found, if it is not as wanted
	ud    []byte
}

// answer notes an element that the kernel returned.
func (q *question) answer(e nft.Elem) {
	if !bytes.Equal(e.Key, q.want.Key) || !bytes.Equal(e.KeyEnd, q.want.KeyEnd) {
		return // another range that contains the key
	}
	q.found, q.want.Goto = true, e.Goto
	q.same = bytes.Equal(e.Data, q.want.Data) && (bytes.Equal(e.UserData, q.want.UserData) ||
		nft.CommentOf(e.UserData) == nft.CommentOf(q.want.UserData))
	if !q.same {
		q.data, q.ud = bytes.Clone(e.Data), bytes.Clone(e.UserData)
	}
}

// elem is the element as it was found. The caller must not keep its bytes.
func (q *question) elem() nft.Elem {
	e := q.want
	if !q.same {
		e.Data, e.UserData = q.data, q.ud
	}
	return e
}

// questions are sent together. They are reused for their memory.
type questions struct {
	all   []question
	bytes []byte // their keys and other bytes
	ports []portRun
	slots []slotRun // the slots of all service ports, in order
}

// portRun says which questions are about a service port. The answers tell whether the service port
// is whole, and which of its pools differ from the wanted ones.
type portRun struct {
	port     servicePort
	from, to int
	whole    bool
	pools    []servicemodel.Change[servicemodel.Pool]
}

// slotRun says which questions are about a pool's slots in the elements of one frontend.
type slotRun struct {
	pool     *servicemodel.Pool
	from, to int
}

func (q *questions) reset() {
	q.all, q.bytes, q.ports, q.slots = q.all[:0], q.bytes[:0], q.ports[:0], q.slots[:0]
}

// keep copies bytes.
func (q *questions) keep(b []byte) []byte {
	if b == nil {
		return nil
	}
	at := len(q.bytes)
	q.bytes = append(q.bytes, b...)
	return q.bytes[at:len(q.bytes):len(q.bytes)]
}

// add asks for an element of a set.
func (q *questions) add(set int, e nft.Elem) {
	q.all = append(q.all, question{set: set, want: nft.Elem{Key: q.keep(e.Key),
		KeyEnd: q.keep(e.KeyEnd), Data: q.keep(e.Data), UserData: q.keep(e.UserData),
		Goto: e.Goto}})
}

// addPort asks for all elements of a service port.
func (q *questions) addPort(r *reading, w *writer, s servicePort) {
	from := len(q.all)
	to := func(name string, e nft.Elem) { q.add(r.position(name), e) }
	for _, fe := range s {
		w.frontend(r.want, fe, to)
		internal, external := nocopy.Of(r.want).PoolsOf(fe)
		for i, p := range []*servicemodel.Pool{internal, external} {
			if p == nil {
				continue
			}
			begin := len(q.all)
			w.slots(fe, i == 1, nil, p, nil, to)
			q.slots = append(q.slots, slotRun{p, begin, len(q.all)})
		}
	}
	q.ports = append(q.ports, portRun{port: s, from: from, to: len(q.all)})
}

// judge finds out which service ports are whole.
func (q *questions) judge(r *reading) {
	slots := q.slots
	for i := range q.ports {
		p, n := &q.ports[i], 0
		for n < len(slots) && slots[n].to <= p.to {
			n++
		}
		p.whole = q.whole(r, p, slots[:n])
		slots = slots[n:]
	}
}

// whole reports whether all elements of a service port exist and are as wanted, apart from the
// endpoints in slots. It notes which pools have other endpoints than wanted.
func (q *questions) whole(r *reading, p *portRun, slots []slotRun) bool {
	for i := p.from; i < p.to; i++ {
		if e := &q.all[i]; !e.found || !e.same && !isLarge(r.sets[e.set].Name) {
			return false
		}
	}
	var read []*servicemodel.Pool
	for _, run := range slots {
		pool := poolIn(r.f, q.all[run.from:run.to], run.pool)
		if pool == nil {
			return false
		}
		for _, other := range read { // the same pool, read from another frontend's elements
			if other.ID == pool.ID && !other.Equal(pool) {
				return false
			}
		}
		read = append(read, pool)
	}
	for i, pool := range read {
		if pool != slots[i].pool && !pool.Equal(slots[i].pool) {
			p.pools = append(p.pools,
				servicemodel.Change[servicemodel.Pool]{Old: slots[i].pool, New: pool})
		}
	}
	return true
}

// poolIn decodes the pool in a frontend's slots. It returns want itself if the pool is equal, and
// nil if the slots make no sense.
func poolIn(f *nft.Family, slots []question, want *servicemodel.Pool) *servicemodel.Pool {
	same := want.Forwarding == servicemodel.ForwardNAT
	for i := range slots {
		same = same && slots[i].same
	}
	if same {
		return want
	}
	l := make([]entry, len(slots))
	var scheduler servicemodel.Scheduler
	for i := range slots {
		e := slots[i].elem()
		ep, ok := endpointIn(f, e.Data)
		if !ok {
			return nil
		}
		var s servicemodel.Scheduler
		if l[i], s = parseEntry(ep, nft.CommentOf(e.UserData)); i == 0 {
			scheduler = s
		}
	}
	return poolFrom(want.ID, scheduler, l, wayOfPool(want))
}

// endpointIn decodes an endpoint, which must be encoded as ours are.
func endpointIn(f *nft.Family, data []byte) (netip.AddrPort, bool) {
	d := nft.Reader{Bytes: data}
	ep := d.Endpoint(f.AddrLen)
	var again [32]byte
	return ep, d.Done() && bytes.Equal(nft.AppendEndpoint(again[:0], ep), data)
}
