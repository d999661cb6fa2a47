package nftables

import (
	"net/netip"
	"strconv"

	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// This file says which elements stand for a frontend: the one place where the model meets the sets.

// sink is given elements, each with the name of its set. The bytes of an element are only lent.
type sink func(set string, e nft.Elem)

// names caches the names of the sets that have a number in them, so that writing many frontends
// makes no strings.
type names map[nameKey]string

type nameKey struct {
	prefix string
	rest   string
	n      int
}

func (c names) get(prefix, rest string, n int) string {
	k := nameKey{prefix, rest, n}
	s, ok := c[k]
	if !ok {
		s = prefix + rest
		if n >= 0 {
			s += strconv.Itoa(n)
		}
		c[k] = s
	}
	return s
}

// writer writes the elements of frontends. It is reused for its buffers.
type writer struct {
	names names
	key   []byte
	data  []byte
	ud    []byte
}

func newWriter() *writer { return &writer{names: names{}} }

// frontend writes all elements of fe, except its slots.
func (w *writer) frontend(t *servicemodel.Table, fe *servicemodel.Frontend, to sink) {
	k := kindOf(fe.Key)
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	w.ud = nft.AppendComment(w.ud[:0], comment.Of(fe))
	to(k.registry, nft.Elem{Key: w.key, UserData: w.ud})
	member := func(rest string, n int) {
		to(w.names.get(k.prefix, rest, n), nft.Elem{Key: w.key})
	}

	internal, external := shared.Of(t).PoolsOf(fe)
	w.verdict(fe.Internal, internal, setSize, member)
	if fe.External != fe.Internal {
		member(setSplit, -1)
		w.verdict(fe.External, external, setExternalSize, member)
	}
	switch fe.Masquerade {
	case servicemodel.FromAnywhere:
		member(setMasqAll, -1)
	case servicemodel.FromHost | servicemodel.FromOutside:
		member(setMasqNotPods, -1)
	case servicemodel.FromHost:
		member(setMasqHost, -1)
	}
	if fe.Affinity > 0 {
		member(setAffinity, int(fe.Affinity.Seconds()))
	}
	if fe.Sources != nil {
		to(setRestricted, nft.Elem{Key: w.key})
		w.sources(fe, to)
	}
}

func (w *writer) verdict(v servicemodel.Verdict, p *servicemodel.Pool, size string,
	member func(string, int)) {
	switch {
	case v == servicemodel.Reject:
		member(setReject, -1)
	case v == servicemodel.Drop:
		member(setDrop, -1)
	case p != nil:
		member(size, slotCount(p))
	}
}

func (w *writer) sources(fe *servicemodel.Frontend, to sink) {
	for _, p := range fe.Sources {
		first := nft.AppendAddr(w.key, p.Masked().Addr())
		last := nft.AppendAddr(nft.AppendFrontend(w.data[:0], fe.Key), nft.LastAddr(p))
		to(setSources, nft.Elem{Key: first, KeyEnd: last})
		w.data = last
	}
}

// slots writes the elements that differ between the slots of two lists, old and new, in the map of
// fe's internal or external endpoints. An endpoint of weight w takes w elements.
func (w *writer) slots(fe *servicemodel.Frontend, external bool, old, new *servicemodel.Pool, del,
	add sink) {
	rest := setEndpoints
	if external {
		rest = setExternalEps
	}
	name := w.names.get(kindOf(fe.Key).prefix, rest, -1)
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	write := func(to sink, from, n int, ep netip.AddrPort) {
		w.data = nft.AppendEndpoint(w.data[:0], ep)
		for i := range n {
			to(name, nft.Elem{Key: nft.AppendSlot(w.key, from+i), Data: w.data})
		}
	}
	a, b := runsOf(old), runsOf(new)
	for at := 0; len(a.slots)+len(b.slots) > 0; {
		n := common(&a, &b)
		was, is := a.take(n), b.take(n)
		if was != is && was.IsValid() {
			write(del, at, n, was)
		}
		if was != is && is.IsValid() {
			write(add, at, n, is)
		}
		at += n
	}
}

// runs are the elements of a pool, from some element on: the endpoint of each slot as often as its
// weight says.
type runs struct {
	slots []servicemodel.Slot
	taken int // elements of the first slot
}

func runsOf(p *servicemodel.Pool) runs {
	if p == nil {
		return runs{}
	}
	return runs{slots: p.Slots}
}

// left returns how many elements have the endpoint of the first one; 0 if none is left.
func (r *runs) left() int {
	if len(r.slots) == 0 {
		return 0
	}
	return int(r.slots[0].Weight) - r.taken
}

// take takes the first n elements and returns their endpoint, an invalid one if none is left.
func (r *runs) take(n int) (ep netip.AddrPort) {
	if len(r.slots) == 0 {
		return ep
	}
	ep = r.slots[0].Endpoint
	if r.taken += n; r.taken == int(r.slots[0].Weight) {
		r.slots, r.taken = r.slots[1:], 0
	}
	return ep
}

// common returns how many elements of a, and of b, have one endpoint. One of them may be at its
// end.
func common(a, b *runs) int {
	x, y := a.left(), b.left()
	if x == 0 || y == 0 {
		return x + y
	}
	return min(x, y)
}

// appendAddrKey appends the key of an address in a set of addresses.
func appendAddrKey(b []byte, set string, a netip.Addr) []byte {
	b = nft.AppendAddr(b, a)
	if set == setHairpins { // source and destination
		b = nft.AppendAddr(b, a)
	}
	return b
}

// slotCount is the number of elements that hold a pool: an endpoint of weight w takes w of them.
func slotCount(p *servicemodel.Pool) int {
	n := 0
	for _, s := range p.Slots {
		n += int(s.Weight)
	}
	return n
}
