package nftables

import (
	"bytes"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// A reading that knows the wanted table asks the kernel for its elements, service port by service
// port. If all elements of a service port exist as wanted, it needs no further reading.

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
	ours := func(fe *servicemodel.Frontend) bool { return fe.Key.Family() == f.Model }
	from := slices.IndexFunc(all, ours)
	if from < 0 {
		return nil
	}
	to := from
	for to < len(all) && ours(all[to]) {
		to++
	}
	return servicePort(all[from:to])
}

// expressible reports whether the backend can express a service port. Only then can its elements
// identify it.
func (s servicePort) expressible(t *servicemodel.Table) bool {
	for _, fe := range s {
		if !rendering.KnownOrigins(fe.Masquerade) || fe.Sources != nil && fe.Key.NodePort() ||
			!hasPools(t, fe) {
			return false
		}
		internal, external := nocopy.Of(t).PoolsOf(fe)
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
	of    [][]int   // by position of a set, the questions about it
	ports []portRun // the service ports, whose questions come first
	bytes []byte    // keys and other bytes of the questions
}

// portRun says where the questions about a service port end.
type portRun struct {
	port servicePort
	to   int
}

func (q *questions) reset() {
	q.all, q.ports, q.bytes = q.all[:0], q.ports[:0], q.bytes[:0]
	for i := range q.of {
		q.of[i] = q.of[i][:0]
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

// add asks for an element of a set. An element of no set is never found.
func (q *questions) add(set int, e nft.Elem) {
	for len(q.of) <= set {
		q.of = append(q.of, nil)
	}
	if set >= 0 {
		q.of[set] = append(q.of[set], len(q.all))
	}
	q.all = append(q.all, question{set: set, want: nft.Elem{Key: q.keep(e.Key),
		KeyEnd: q.keep(e.KeyEnd), Data: q.keep(e.Data), UserData: q.keep(e.UserData),
		Goto: e.Goto}})
}

// addPort asks for all elements of a service port.
func (q *questions) addPort(r *reading, w *writer, s servicePort) {
	if s.expressible(r.want) {
		for _, fe := range s {
			w.elements(r.want, fe, func(set string, e nft.Elem) { q.add(r.position(set), e) })
		}
	} else {
		q.add(-1, nft.Elem{}) // the kernel does not have it
	}
	q.ports = append(q.ports, portRun{s, len(q.all)})
}

// note notes the answers about service ports, and then about addresses. A service port whose
// elements do not all exist as wanted is gone, and the elements that were found are left over.
// again says that the service ports are contested: then all of them are gone, and their elements
// were counted before.
func (r *reading) note(q *questions, again bool) {
	from := 0
	for _, p := range q.ports {
		asked := q.all[from:p.to]
		from = p.to
		gone := again || slices.ContainsFunc(asked, func(a question) bool { return !a.same })
		if gone {
			r.gone = append(r.gone, p.port...)
		}
		for i := range asked {
			a := &asked[i]
			if a.found && gone {
				r.add(r.sets[a.set].Name, a.elem())
			}
			if a.found && !again {
				r.found[a.set]++
			}
		}
	}
	for _, a := range q.all[from:] {
		if a.found {
			r.found[a.set]++
			continue
		}
		set := r.sets[a.set].Name
		addr, _ := addressIn(r.f, set, a.want)
		r.lacks[set] = append(r.lacks[set], addr)
	}
}
