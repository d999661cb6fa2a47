package nftables

import (
	"cmp"
	"net/netip"
	"strconv"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// This file says which elements stand for a frontend. Only here does the model meet the sets.

// sink receives elements, each with the name of its set. It must not keep an element's bytes.
type sink func(set string, e nft.Elem)

// names caches the names of sets that contain a number, so that writing many frontends allocates no
// strings.
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
	// tables are the last tables of Maglev.
	tables [2]maglevTable
}

func newWriter() *writer { return &writer{names: names{}} }

// elements writes all elements of fe.
func (w *writer) elements(t *servicemodel.Table, fe *servicemodel.Frontend, to sink) {
	w.frontend(t, fe, to)
	w.pools(t, fe, to)
}

// frontend writes all elements of fe, except its slots.
func (w *writer) frontend(t *servicemodel.Table, fe *servicemodel.Frontend, to sink) {
	k := kindOf(fe.Key)
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	w.ud = nft.AppendComment(w.ud[:0], rendering.Comment(fe))
	to(k.registry, nft.Elem{Key: w.key, UserData: w.ud})
	member := func(rest string, n int) {
		to(w.names.get(k.prefix, rest, n), nft.Elem{Key: w.key})
	}

	internal, external := nocopy.Of(t).PoolsOf(fe)
	w.verdict(fe, false, internal, to)
	if fe.External != fe.Internal {
		member(setSplit, -1)
		w.verdict(fe, true, external, to)
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
		w.affinity(fe, internal, external, to)
	}
	if fe.Sources != nil {
		to(setRestricted, nft.Elem{Key: w.key})
		w.sources(fe, to)
	}
}

// verdict writes the elements that decide about packets from inside or outside: in sets, or in the
// map that leads to a pool's chain.
func (w *writer) verdict(fe *servicemodel.Frontend, outside bool, p *servicemodel.Pool, to sink) {
	k, v, over := kindOf(fe.Key), fe.Internal, setOver
	if outside {
		v, over = fe.External, setExternalOver
	}
	member := func(rest string, n int) {
		to(w.names.get(k.prefix, rest, n), nft.Elem{Key: w.key})
	}
	switch {
	case v == servicemodel.Reject:
		member(setReject, -1)
	case v == servicemodel.Drop:
		member(setDrop, -1)
	case p != nil:
		if wayOfPool(p) != atRandom {
			w.scheduled(fe, outside, p, to)
			return
		}
		class := classOf(slotCount(p))
		for than := range class {
			if isOver(class, than) {
				member(over, most(than))
			}
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

// pools writes the slots of fe.
func (w *writer) pools(t *servicemodel.Table, fe *servicemodel.Frontend, to sink) {
	internal, external := nocopy.Of(t).PoolsOf(fe)
	w.slots(fe, false, nil, internal, nil, to)
	w.slots(fe, true, nil, external, nil, to)
}

// slots writes the elements that differ between the slots of the pools old and new, in the maps of
// fe's internal or external endpoints. An endpoint of weight w has w elements, unless the scheduler
// needs others.
func (w *writer) slots(fe *servicemodel.Frontend, outside bool, old, new *servicemodel.Pool, del,
	add sink) {
	if old == nil && new == nil {
		return
	}
	name := w.slotMap(kindOf(fe.Key), outside, cmp.Or(new, old))
	if w.slotMap(kindOf(fe.Key), outside, cmp.Or(old, new)) != name {
		w.slots(fe, outside, old, nil, del, add)
		old = nil
	}
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	write := func(to sink, p *servicemodel.Pool, at int, en *entry) {
		w.data = nft.AppendEndpoint(w.data[:0], en.endpoint)
		e := nft.Elem{Key: nft.AppendSlot(w.key, at), Data: w.data}
		if at == 0 || en.slot >= 0 || en.weight > 0 {
			if c := en.comment(at, p); c != "" {
				w.ud = nft.AppendComment(w.ud[:0], c)
				e.UserData = w.ud
			}
		}
		to(name, e)
	}
	renamed := old != nil && new != nil && old.Scheduler != new.Scheduler
	a, b := w.entriesOf(old), w.entriesOf(new)
	for at := 0; a.left()+b.left() > 0; at++ {
		if a.same(&b) && (at > 0 || !renamed) {
			continue
		}
		was, is := a.now, b.now
		if was.endpoint.IsValid() {
			write(del, old, at, &was)
		}
		if is.endpoint.IsValid() {
			write(add, new, at, &is)
		}
	}
}

// address writes the element of an address in a set of addresses.
func (w *writer) address(set string, a netip.Addr, to sink) {
	w.key = appendAddrKey(w.key[:0], set, a)
	to(set, nft.Elem{Key: w.key})
}

// appendAddrKey appends the key of an address in a set of addresses.
func appendAddrKey(b []byte, set string, a netip.Addr) []byte {
	b = nft.AppendAddr(b, a)
	if set == setHairpins { // source and destination
		b = nft.AppendAddr(b, a)
	}
	return b
}

// slotCount is the number of elements of a pool: an endpoint of weight w has w of them.
func slotCount(p *servicemodel.Pool) int {
	n := 0
	for _, s := range p.Slots {
		n += int(s.Weight)
	}
	return n
}
