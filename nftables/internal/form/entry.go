package form

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// Entry is an element of a pool in its map. If the slot or the weight of an endpoint does not
// follow from the elements, the comment of the endpoint's first element contains it.
type Entry struct {
	Endpoint netip.AddrPort
	weight   uint16 // 0 if the comment has none
	Slot     int32  // -1 if the comment has none
}

// comment is the comment of the entry. The first entry of a pool can name the scheduler.
func (e *Entry) comment(named bool, p *servicemodel.Pool) string {
	var l []string
	if named {
		l = append(l, schedulerWord+string(p.Scheduler))
	}
	if e.Slot >= 0 {
		l = append(l, fmt.Sprint(slotWord, e.Slot))
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

// ParseEntry reads the comment of an entry. The scheduler is empty if the comment names no
// scheduler.
func ParseEntry(ep netip.AddrPort, comment string) (e Entry, s servicemodel.Scheduler) {
	e = Entry{Endpoint: ep, Slot: -1}
	for word := range strings.FieldsSeq(comment) {
		if v, ok := strings.CutPrefix(word, schedulerWord); ok {
			parsed, err := servicemodel.ParseScheduler(v)
			name, _, _ := parsed.Split()
			if _, ok := SchedulerWays[name]; ok && err == nil {
				s = parsed
			}
		}

		if v, ok := strings.CutPrefix(word, slotWord); ok {
			n, err := strconv.ParseUint(v, 10, 16)
			e.Slot = int32(n)
			if err != nil {
				e.Slot = -1
			}
		}

		if v, ok := strings.CutPrefix(word, weightWord); ok {
			n, _ := strconv.ParseUint(v, 10, 16)
			e.weight = uint16(n)
		}
	}

	return e, s
}

// unitsFrom adds the slots and units that entries describe to a pool. It returns nil if the result
// is not a valid pool.
func unitsFrom(p *servicemodel.Pool, l []Entry) *servicemodel.Pool {
	slot := map[netip.AddrPort]int32{}
	for _, e := range l {
		switch at, found := slot[e.Endpoint]; {
		case !e.Endpoint.IsValid():
			p.Units = append(p.Units, -1)
			continue
		case !found && (e.Slot < 0 || int(e.Slot) >= len(l)):
			return nil
		case !found:
			slot[e.Endpoint] = e.Slot
			for len(p.Slots) <= int(e.Slot) {
				p.Slots = append(p.Slots, servicemodel.Slot{})
			}
			p.Slots[e.Slot] = servicemodel.Slot{Endpoint: e.Endpoint, Weight: max(e.weight, 1)}
			p.Units = append(p.Units, e.Slot)
		default:
			p.Units = append(p.Units, at)
		}
	}

	if _, err := servicemodel.NewTable(servicemodel.Contents{
		Pools: []*servicemodel.Pool{p}}); err != nil {
		return nil
	}

	return p
}

// PoolFrom returns the pool that the entries in the map of a way describe, or nil. A later check
// compares all entries with the entries of the pool.
func PoolFrom(id servicemodel.PoolID, s servicemodel.Scheduler, l []Entry,
	in Feature) *servicemodel.Pool {
	p := &servicemodel.Pool{ID: id, Scheduler: s}
	if WayOf(p) != in {
		return nil
	}
	slotted := func(e Entry) bool { return e.Slot >= 0 }
	if (in == ByHash || in == AtRandom) && slices.ContainsFunc(l, slotted) {
		return unitsFrom(p, l)
	}
	for _, e := range l {
		slot, n := servicemodel.Slot{Endpoint: e.Endpoint, Weight: max(e.weight, 1)}, len(p.Slots)
		switch {
		case in == ByMaglev && e.Slot >= 0 && int(e.Slot) < len(l):
			for len(p.Slots) <= int(e.Slot) {
				p.Slots = append(p.Slots, servicemodel.Slot{})
			}
			p.Slots[e.Slot] = slot
		case in == ByMaglev: // a further entry of a slot
		case !s.Even() && n > 0 && p.Slots[n-1].Endpoint == e.Endpoint:
			p.Slots[n-1].Weight++ // equal endpoints in a row are one slot with a weight
		default:
			p.Slots = append(p.Slots, slot)
		}
	}

	if in == ByMaglev && p.MaglevSize() != len(l) {
		return nil
	}
	return p
}

type maglevTable struct {
	of    *servicemodel.Pool
	table []uint16
}

// entries iterates over the elements of a pool in its map.
type entries struct {
	now   Entry
	slots []servicemodel.Slot // the slots that are left; with a table, all slots
	taken uint16              // the number of elements of the first slot that were returned
	once  bool                // each slot has one element, whatever its weight
	table []uint16            // the rest of the table of Maglev
	units []int32             // the rest of the units of a hash
	seen  []bool              // the slots that have had an entry, with a table or units
}

// next moves to the next entry. At a hole, the endpoint is invalid. It returns false at the end.
func (l *entries) next() bool {
	l.now = Entry{Slot: -1}
	if len(l.slots) == 0 || l.seen != nil && len(l.table)+len(l.units) == 0 {
		return false
	}
	i := 0
	switch {
	case l.units != nil:
		if i, l.units = int(l.units[0]), l.units[1:]; i < 0 {
			return true
		}
	case l.seen != nil:
		i, l.table = int(l.table[0]), l.table[1:]
	}

	s := &l.slots[i]
	l.now = Entry{Endpoint: s.Endpoint, Slot: -1}
	switch {
	case l.seen != nil:
		if !l.seen[i] {
			l.seen[i], l.now.Slot, l.now.weight = true, int32(i), noted(s.Weight)
		}
	case l.once:
		l.now.weight, l.slots = noted(s.Weight), l.slots[1:]
	default:
		if l.taken++; l.taken >= s.Weight {
			l.slots, l.taken = l.slots[1:], 0
		}
	}

	return true
}

// noted returns the weight to write into a comment. Comments leave out the weight 1.
func noted(weight uint16) uint16 {
	if weight == 1 {
		return 0
	}
	return weight
}
