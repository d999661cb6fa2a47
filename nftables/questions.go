package nftables

import (
	"bytes"
	"iter"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// A reading that knows the wanted table asks the kernel for its elements, object by object. If all
// elements of an object exist as wanted, it needs no further reading.

// object is what a reading finds whole or not at all: a service port in one family, or an address
// in a set of addresses.
type object struct {
	frontends []*servicemodel.Frontend // of the service port. They share pools.
	set       string
	addr      netip.Addr
}

// objectsOf yields the objects of a table in one family: service ports, then addresses.
func objectsOf(f *nft.Family, t *servicemodel.Table) iter.Seq[object] {
	return func(yield func(object) bool) {
		for fe := range frontendsOf(t, f) {
			o := portOf(f, t, fe.Service)
			if first := o.frontends[0].Key == fe.Key; first && !yield(o) {
				return
			}
		}
		for _, set := range addressSets {
			for a := range addressesOf(t, f, set) {
				if !yield(object{set: set, addr: a}) {
					return
				}
			}
		}
	}
}

// portOf returns a service port of a table. It has no frontends if the table has no such port.
func portOf(f *nft.Family, t *servicemodel.Table, port servicemodel.PortName) object {
	all := t.FrontendsOf(port) // sorted: frontends of one family are adjacent
	from, to := len(all), 0
	for i, fe := range all {
		if fe.Key.Family() == f.Model {
			from, to = min(from, i), i+1
		}
	}
	return object{frontends: all[min(from, to):to]}
}

// elements writes the elements of an object of t.
func (o *object) elements(w *writer, t *servicemodel.Table, to sink) {
	if o.frontends == nil {
		w.address(o.set, o.addr, to)
	}
	for _, fe := range o.frontends {
		w.elements(t, fe, to)
	}
}

// expressible reports whether the backend can express an object. Only then can its elements
// identify it.
func (o *object) expressible(t *servicemodel.Table) bool {
	for _, fe := range o.frontends {
		if !rendering.KnownOrigins(fe.Masquerade) || fe.Sources != nil && fe.Key.NodePort() ||
			!hasPools(t, fe) {
			return false
		}
		internal, external := t.PoolsOf(fe)
		for _, p := range []*servicemodel.Pool{internal, external} {
			if p == nil {
				continue
			}
			n := entryCount(p)
			if n == 0 || n > maxSlots || p.Forwarding != servicemodel.ForwardNAT {
				return false
			}
		}
	}
	return true
}

// hasPools reports whether a table has the pools of a frontend.
func hasPools(t *servicemodel.Table, fe *servicemodel.Frontend) bool {
	internal, external := t.PoolsOf(fe)
	return (internal != nil || !fe.Internal.Balances()) &&
		(external != nil || !fe.External.Balances() || fe.External == fe.Internal)
}

// question asks the kernel for one element, and holds the answer.
type question struct {
	set   string
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
	all     []question
	of      map[string][]int // the questions about each set
	objects []objectRun
	bytes   []byte // keys and other bytes of the questions
}

// objectRun says where the questions about an object end.
type objectRun struct {
	object
	to int // among all questions
}

func newQuestions() *questions { return &questions{of: map[string][]int{}} }

func (q *questions) reset() {
	q.all, q.objects, q.bytes = q.all[:0], q.objects[:0], q.bytes[:0]
	for set := range q.of {
		q.of[set] = q.of[set][:0]
	}
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
func (q *questions) add(set string, e nft.Elem) {
	q.of[set] = append(q.of[set], len(q.all))
	q.all = append(q.all, question{set: set, want: nft.Elem{Key: q.keep(e.Key),
		KeyEnd: q.keep(e.KeyEnd), Data: q.keep(e.Data), UserData: q.keep(e.UserData),
		Goto: e.Goto}})
}

// note notes the answers about objects. If not all elements of an object exist as wanted, it is
// gone, and the elements that were found are left over.
func (r *reading) note(q *questions) {
	from := 0
	for _, o := range q.objects {
		asked := q.all[from:o.to]
		from = o.to
		gone := slices.ContainsFunc(asked, func(a question) bool { return !a.same })
		if gone {
			r.gone = append(r.gone, o.object)
		}
		for i := range asked {
			a := &asked[i]
			if !a.found {
				continue
			}
			if r.found[a.set]++; gone {
				r.add(a.set, a.elem())
			}
		}
	}
}
