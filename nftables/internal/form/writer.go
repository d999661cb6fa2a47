package form

import (
	"net/netip"
	"strconv"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// This file computes the elements of a frontend. Only this file connects the model with the sets.

// Sink receives elements, each with the name of its set. It must not retain an element's bytes.
type Sink func(set string, e nft.Elem)

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

// Writer writes the elements of frontends. It is reused for its buffers.
type Writer struct {
	names names
	key   []byte
	data  []byte
	ud    []byte
	// tables are the most recent tables of Maglev, and Changes the most recent differences of
	// pools.
	tables  [2]maglevTable
	Changes [4]*poolChange
}

func NewWriter() *Writer { return &Writer{names: names{}} }

// Address writes the element of an address in a set of addresses.
func (w *Writer) Address(set string, a netip.Addr, to Sink) {
	w.key = AppendAddrKey(w.key[:0], set, a)
	to(set, nft.Elem{Key: w.key})
}

// AppendAddrKey appends the key of an address in a set of addresses.
func AppendAddrKey(b []byte, set string, a netip.Addr) []byte {
	b = nft.AppendAddr(b, a)
	if set == SetHairpins { // source and destination
		b = nft.AppendAddr(b, a)
	}
	return b
}

// AddressIn decodes an element of a set of addresses.
func AddressIn(f *nft.Family, set string, e nft.Elem) (netip.Addr, bool) {
	r := nft.Reader{Bytes: e.Key}
	a := r.Addr(f.AddrLen)
	if set == SetHairpins && r.Addr(f.AddrLen) != a {
		return a, false
	}
	return a, r.Done()
}

// PoolChange returns the difference of two pools. The writer caches the most recent differences,
// because the frontends of a service follow one another.
func (w *Writer) PoolChange(old, new *servicemodel.Pool) *poolChange {
	for _, c := range w.Changes {
		if c != nil && c.old == old && c.new == new {
			return c
		}
	}

	c := &poolChange{old: old, new: new, Lost: without(old, new)}
	copy(w.Changes[1:], w.Changes[:])
	w.Changes[0] = c
	return c
}

func (w *Writer) entriesOf(p *servicemodel.Pool) entries {
	if p == nil {
		return entries{}
	}
	l := entries{slots: p.Slots, once: p.Scheduler.Even()}
	switch l.units = p.Units; {
	case WayOf(p) == ByMaglev:
		l.table, l.seen = w.maglev(p), make([]bool, len(p.Slots))
	case l.units != nil:
		l.seen = make([]bool, len(p.Slots))
	}

	return l
}

// maglev returns the table of a pool. It caches two tables, from before and after a change, because
// the frontends of a service follow one another.
func (w *Writer) maglev(p *servicemodel.Pool) []uint16 {
	for i := range w.tables {
		if w.tables[i].of == p {
			return w.tables[i].table
		}
	}

	w.tables[0], w.tables[1] = w.tables[1], maglevTable{p, p.Maglev()}
	return w.tables[1].table
}
