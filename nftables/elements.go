package nftables

import (
	"net/netip"
	"strconv"

	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/internal/nft"
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

	w.verdict(fe, fe.Internal, t, setSize, member)
	if fe.External != fe.Internal {
		member(setSplit, -1)
		w.verdict(fe, fe.External, t, setExternalSize, member)
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

func (w *writer) verdict(fe *servicemodel.Frontend, v servicemodel.Verdict, t *servicemodel.Table,
	size string, member func(string, int)) {
	switch v {
	case servicemodel.Reject:
		member(setReject, -1)
	case servicemodel.Drop:
		member(setDrop, -1)
	default:
		if p := poolOf(t, fe, v); p != nil {
			member(size, slotCount(p))
		}
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

// slots writes the slots of fe's pools that differ between two expanded lists: what is in old only
// goes to del, what is in new only goes to add.
func (w *writer) slots(fe *servicemodel.Frontend, external bool, old, new []netip.AddrPort, del,
	add sink) {
	rest := setEndpoints
	if external {
		rest = setExternalEps
	}
	name := w.names.get(kindOf(fe.Key).prefix, rest, -1)
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	at := func(i int, ep netip.AddrPort) nft.Elem {
		w.data = nft.AppendEndpoint(w.data[:0], ep)
		return nft.Elem{Key: nft.AppendSlot(w.key, i), Data: w.data}
	}
	for i, ep := range old {
		if i >= len(new) || new[i] != ep {
			del(name, at(i, ep))
		}
	}
	for i, ep := range new {
		if i >= len(old) || old[i] != ep {
			add(name, at(i, ep))
		}
	}
}

// appendAddrKey appends the key of an address in a set of addresses.
func appendAddrKey(b []byte, set string, a netip.Addr) []byte {
	b = nft.AppendAddr(b, a)
	if set == setHairpins { // source and destination
		b = nft.AppendAddr(b, a)
	}
	return b
}

// pools returns the pools that fe balances over: one for everybody or for internal traffic, and one
// for external traffic if that has its own. Either may be nil.
func pools(t *servicemodel.Table, fe *servicemodel.Frontend) (internal,
	external *servicemodel.Pool) {
	internal = poolOf(t, fe, fe.Internal)
	if fe.External != fe.Internal {
		external = poolOf(t, fe, fe.External)
	}
	return internal, external
}

func poolOf(t *servicemodel.Table, fe *servicemodel.Frontend,
	v servicemodel.Verdict) *servicemodel.Pool {
	id, ok := fe.Pool(v)
	if !ok {
		return nil
	}
	return t.Pool(id)
}

// slotCount is the number of elements that hold a pool: an endpoint of weight w takes w of them.
func slotCount(p *servicemodel.Pool) int {
	n := 0
	for _, s := range p.Slots {
		n += int(s.Weight)
	}
	return n
}

// expand appends a pool's endpoints, each as often as its weight says.
func expand(to []netip.AddrPort, p *servicemodel.Pool) []netip.AddrPort {
	if p == nil {
		return to
	}
	for _, s := range p.Slots {
		for range s.Weight {
			to = append(to, s.Endpoint)
		}
	}
	return to
}
