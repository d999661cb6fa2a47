package nftables

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

// This file says which elements a pool has in the map of its scheduler, and which pool has given
// elements.

// tableless says what pools mean without a table.
var tableless = nocopy.Of((*servicemodel.Table)(nil))

// entryCount is the number of elements that a pool has in its map.
func entryCount(p *servicemodel.Pool) int {
	switch {
	case wayOfPool(p) == byMaglev:
		return tableless.MaglevSize(p)
	case p.Scheduler == servicemodel.RoundRobin:
		return len(p.Slots)
	}
	return slotCount(p)
}

// expressible reports whether a pool is not too large.
func expressible(p *servicemodel.Pool) bool {
	n := entryCount(p)
	return n > 0 && n <= maxSlots
}

// entry is an element of a pool in its map. If the elements do not show the slot or the weight of
// an endpoint, the comment of the endpoint's first element says it.
type entry struct {
	endpoint netip.AddrPort
	weight   uint16 // 0 if the comment has none
	slot     int32  // -1 if the comment has none
}

// comment is the comment of the entry, at a position in the map.
func (e *entry) comment(at int, p *servicemodel.Pool) string {
	var l []string
	if at == 0 && p.Scheduler != servicemodel.SchedulerDefault {
		l = append(l, schedulerWord+string(p.Scheduler))
	}
	if e.slot >= 0 {
		l = append(l, fmt.Sprint(slotWord, e.slot))
	}
	if e.weight > 0 {
		l = append(l, fmt.Sprint(weightWord, e.weight))
	}
	return strings.Join(l, " ")
}

// Words in the comments of entries. A number or name follows.
const (
	schedulerWord = "scheduler="
	slotWord      = "slot="
	weightWord    = "weight="
)

// parseEntry reads the comment of an entry. The scheduler is empty if the comment names none.
func parseEntry(ep netip.AddrPort, comment string) (e entry, s servicemodel.Scheduler) {
	e = entry{endpoint: ep, slot: -1}
	for word := range strings.FieldsSeq(comment) {
		if v, ok := strings.CutPrefix(word, schedulerWord); ok {
			parsed, err := servicemodel.ParseScheduler(v)
			if _, ok := wayOf(parsed); ok && err == nil {
				s = parsed
			}
		}
		if v, ok := strings.CutPrefix(word, slotWord); ok {
			n, err := strconv.ParseUint(v, 10, 16)
			if e.slot = int32(n); err != nil {
				e.slot = -1
			}
		}
		if v, ok := strings.CutPrefix(word, weightWord); ok {
			n, _ := strconv.ParseUint(v, 10, 16)
			e.weight = uint16(n)
		}
	}
	return e, s
}

// entries iterates over the elements of a pool in its map.
type entries struct {
	now   entry
	slots []servicemodel.Slot // the slots that are left; with a table, all slots
	taken uint16              // how many elements of the first slot were returned
	once  bool                // each slot has one element, whatever its weight
	table []uint16            // what is left of the table of Maglev
	seen  []bool              // which slots have had an entry
}

func (w *writer) entriesOf(p *servicemodel.Pool) entries {
	if p == nil {
		return entries{}
	}
	l := entries{slots: p.Slots, once: p.Scheduler == servicemodel.RoundRobin}
	if wayOfPool(p) == byMaglev {
		l.table, l.seen = w.maglev(p), make([]bool, len(p.Slots))
	}
	return l
}

// maglev returns the table of a pool. It keeps the last two tables, before and after a change,
// because the frontends of a service follow one another.
func (w *writer) maglev(p *servicemodel.Pool) []uint16 {
	for i := range w.tables {
		if w.tables[i].of == p {
			return w.tables[i].table
		}
	}
	w.tables[0], w.tables[1] = w.tables[1], maglevTable{p, tableless.Maglev(p)}
	return w.tables[1].table
}

// maglevTable is the table of a pool.
type maglevTable struct {
	of    *servicemodel.Pool
	table []uint16
}

// left is 0 at the end.
func (l *entries) left() int {
	if l.seen != nil {
		return len(l.table)
	}
	return len(l.slots)
}

// same moves both to their next entries, and reports whether these are equal.
func (l *entries) same(o *entries) bool {
	l.next()
	o.next()
	return l.now.endpoint == o.now.endpoint && l.now.slot == o.now.slot &&
		l.now.weight == o.now.weight
}

// next moves to the next entry, or at the end to one with an invalid endpoint.
func (l *entries) next() {
	switch {
	case l.left() == 0:
		l.now = entry{slot: -1}
	case l.seen != nil:
		l.nextOfTable()
	case l.once:
		l.now = entry{endpoint: l.slots[0].Endpoint, weight: noted(l.slots[0].Weight), slot: -1}
		l.slots = l.slots[1:]
	default:
		s := &l.slots[0]
		l.now.endpoint, l.now.slot = s.Endpoint, -1
		if l.taken++; l.taken >= s.Weight {
			l.slots, l.taken = l.slots[1:], 0
		}
	}
}

func (l *entries) nextOfTable() {
	slot := l.table[0]
	s := &l.slots[slot]
	l.now = entry{endpoint: s.Endpoint, slot: -1}
	if !l.seen[slot] {
		l.seen[slot], l.now.slot, l.now.weight = true, int32(slot), noted(s.Weight)
	}
	l.table = l.table[1:]
}

// noted returns the weight for a comment, which leaves out the weight 1.
func noted(weight uint16) uint16 {
	if weight == 1 {
		return 0
	}
	return weight
}

// poolFrom returns the pool that has the entries, in the map of a way. It returns nil if no pool
// has them.
func poolFrom(id servicemodel.PoolID, s servicemodel.Scheduler, l []entry,
	in way) *servicemodel.Pool {
	p := &servicemodel.Pool{ID: id, Scheduler: s}
	if wayOfPool(p) != in {
		return nil
	}
	for _, e := range l {
		switch {
		case in != byMaglev:
			appendEntry(p, e, s == servicemodel.RoundRobin)
		case e.slot >= 0 && int(e.slot) < len(l):
			for len(p.Slots) <= int(e.slot) {
				p.Slots = append(p.Slots, servicemodel.Slot{})
			}
			p.Slots[e.slot] = servicemodel.Slot{Endpoint: e.endpoint, Weight: max(e.weight, 1)}
		}
	}
	if in == byMaglev && tableless.MaglevSize(p) != len(l) {
		return nil
	}
	if in == atRandom {
		return p
	}
	again := newWriter().entriesOf(p)
	for i := range l {
		if again.next(); again.now != l[i] {
			return nil
		}
	}
	return p
}

// appendEntry adds an entry to a pool. Equal endpoints in a row become one slot with a weight,
// unless each slot has one entry.
func appendEntry(p *servicemodel.Pool, e entry, once bool) {
	if n := len(p.Slots); !once && n > 0 && p.Slots[n-1].Endpoint == e.endpoint {
		p.Slots[n-1].Weight++
		return
	}
	p.Slots = append(p.Slots, servicemodel.Slot{Endpoint: e.endpoint, Weight: max(e.weight, 1)})
}
