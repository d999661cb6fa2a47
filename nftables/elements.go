package nftables

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
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
	// tables are the last tables of Maglev, and changes the last differences of pools.
	tables  [2]maglevTable
	changes [4]*poolChange
}

func newWriter() *writer { return &writer{names: names{}} }

// elements writes all elements of fe.
func (w *writer) elements(t *servicemodel.Table, fe *servicemodel.Frontend, to sink) {
	w.frontend(t, fe, to)
	internal, external := t.PoolsOf(fe)
	w.pool(nil, fe, false, nil, internal, nil, to)
	w.pool(nil, fe, true, nil, external, nil, to)
}

// pool writes the elements that differ between the pools of a frontend before and after a change:
// was of old, and is of new.
func (w *writer) pool(old, new *servicemodel.Frontend, outside bool, was, is *servicemodel.Pool,
	del, add sink) {
	w.slots(new, outside, was, is, del, add)
	if old == nil || !old.AffinityService {
		was = nil
	}
	if !new.AffinityService {
		is = nil
	}
	w.byAddress(new, outside, was, is, del, add)
}

// frontend writes all elements of fe, except those of its pools' endpoints.
func (w *writer) frontend(t *servicemodel.Table, fe *servicemodel.Frontend, to sink) {
	k := kindOf(fe.Key)
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	w.ud = nft.AppendComment(w.ud[:0], rendering.Comment(fe))
	to(k.registry, nft.Elem{Key: w.key, UserData: w.ud})
	member := func(rest string, n int) {
		to(w.names.get(k.prefix, rest, n), nft.Elem{Key: w.key})
	}

	internal, external := t.PoolsOf(fe)
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
		w.affinity(fe, to)
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
		if wayOf(p) != atRandom {
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

// slots writes the elements that differ between the slots of the pools old and new, in the maps of
// fe's internal or external endpoints. An endpoint of weight w has w elements, unless the scheduler
// needs others.
func (w *writer) slots(fe *servicemodel.Frontend, outside bool, old, new *servicemodel.Pool, del,
	add sink) {
	if old == nil && new == nil {
		return
	}
	way := wayOf(cmp.Or(new, old))
	if old != nil && wayOf(old) != way { // its slots are in another map
		w.slots(fe, outside, old, nil, del, add)
		old = nil
	}
	name := kindOf(fe.Key).slotMap(outside, way)
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	write := func(to sink, p *servicemodel.Pool, at int, en *entry) {
		w.data = nft.AppendEndpoint(w.data[:0], en.endpoint)
		e := nft.Elem{Key: nft.AppendSlot(w.key, at), Data: w.data}
		named := at == 0 && p.Scheduler != servicemodel.SchedulerDefault
		if named || en.slot >= 0 || en.weight > 0 {
			w.ud = nft.AppendComment(w.ud[:0], en.comment(named, p))
			e.UserData = w.ud
		}
		to(name, e)
	}
	renamed := old != nil && new != nil && old.Scheduler != new.Scheduler
	a, b := w.entriesOf(old), w.entriesOf(new)
	for at := 0; ; at++ {
		if moreA, moreB := a.next(), b.next(); !moreA && !moreB {
			return
		}
		if a.now == b.now && (at > 0 || !renamed) {
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

// This file says which elements a pool has in the map of its scheduler, and which pool has given
// elements.

// entryCount is the number of elements that a pool has in its map, and of holes between them.
func entryCount(p *servicemodel.Pool) int {
	switch {
	case wayOf(p) == byMaglev:
		return p.MaglevSize()
	case p.Scheduler == servicemodel.RoundRobin:
		return len(p.Slots)
	case p.Units != nil:
		return len(p.Units)
	}
	return slotCount(p)
}

// entry is an element of a pool in its map. If the elements do not show the slot or the weight of
// an endpoint, the comment of the endpoint's first element says it.
type entry struct {
	endpoint netip.AddrPort
	weight   uint16 // 0 if the comment has none
	slot     int32  // -1 if the comment has none
}

// comment is the comment of the entry. The first one of a pool can name the scheduler.
func (e *entry) comment(named bool, p *servicemodel.Pool) string {
	var l []string
	if named {
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

// entries iterates over the elements of a pool in its map.
type entries struct {
	now   entry
	slots []servicemodel.Slot // the slots that are left; with a table, all slots
	taken uint16              // how many elements of the first slot were returned
	once  bool                // each slot has one element, whatever its weight
	table []uint16            // what is left of the table of Maglev
	units []int32             // what is left of the units of a hash
	seen  []bool              // which slots have had an entry, with a table or units
}

func (w *writer) entriesOf(p *servicemodel.Pool) entries {
	if p == nil {
		return entries{}
	}
	l := entries{slots: p.Slots, once: p.Scheduler == servicemodel.RoundRobin}
	switch l.units = p.Units; {
	case wayOf(p) == byMaglev:
		l.table, l.seen = w.maglev(p), make([]bool, len(p.Slots))
	case l.units != nil:
		l.seen = make([]bool, len(p.Slots))
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
	w.tables[0], w.tables[1] = w.tables[1], maglevTable{p, p.Maglev()}
	return w.tables[1].table
}

// maglevTable is the table of a pool.
type maglevTable struct {
	of    *servicemodel.Pool
	table []uint16
}

// next moves to the next entry. At a hole, the endpoint is invalid. It returns false at the end.
func (l *entries) next() bool {
	l.now = entry{slot: -1}
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
	l.now = entry{endpoint: s.Endpoint, slot: -1}
	switch {
	case l.seen != nil:
		if !l.seen[i] {
			l.seen[i], l.now.slot, l.now.weight = true, int32(i), noted(s.Weight)
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

// noted returns the weight for a comment, which leaves out the weight 1.
func noted(weight uint16) uint16 {
	if weight == 1 {
		return 0
	}
	return weight
}

// A pool of at most 2 slots is of class 0, one of at most 4 of class 1, one of at most 8 of class
// 2, and so on. The sets -over-2, -over-4, -over-8 and so on tell the class of a frontend. A packet
// asks the sets of even classes in turn: -over-2, -over-8, -over-32. So it passes two classes with
// each question, the smallest ones first because small pools are usual. One more question tells the
// two classes apart. A frontend is only in those sets that its packets ask and that lead them to
// more slots. So one endpoint more or less changes none of the sets, unless the class changes.
//
// The sets from -over-128 on exist only while some pool needs them ([shape]). Without them packets
// find the same class for all other pools.

// The numbers of classes: all that pools can have (see maxSlots), and those of nearly all nodes.
const (
	allClasses   = 16
	smallClasses = 7
)

// most is the greatest number of slots in a class.
func most(class int) int { return 2 << class }

// classOf returns the class of a pool with so many slots.
func classOf(slots int) int { return max(bits.Len(uint(max(slots, 1)-1))-1, 0) }

// isOver reports whether the frontends of a class are in the set of those with more slots than
// another class has.
func isOver(class, than int) bool {
	return than < class && (than%2 == 0 || than == class-1)
}

// asked lists the classes for which packets in the chain for a class ask whether their frontends
// have more slots. The chains for odd classes are the first ones of two classes.
func asked(class int) []int {
	switch {
	case class == 0:
		return []int{0}
	case class%2 == 1:
		return []int{class + 1, class}
	}
	return nil
}

// overName is the name of the set of frontends with more slots than a class has, without the kind's
// prefix.
func overName(over string, class int) string { return over + strconv.Itoa(most(class)) }

// A pool whose scheduler is not random has its slots in a map of its scheduler, and not in the
// ordinary one, and its frontends are in no set that tells a class. A packet to it finds no slot in
// the ordinary map. Then the map of verdicts "-scheduled" leads it to the chain of its pool's
// scheduler and size. Packets to other services do not come so far.

// schedulerWays are the ways in which the schedulers that nftables has choose endpoints.
var schedulerWays = map[servicemodel.Scheduler]feature{
	servicemodel.SchedulerDefault: atRandom, servicemodel.Random: atRandom,
	servicemodel.RoundRobin: inTurn, servicemodel.WeightedRR: inTurn,
	servicemodel.SourceHash: byHash, servicemodel.Maglev: byMaglev,
}

// wayOf returns how a packet chooses among a pool's slots.
func wayOf(p *servicemodel.Pool) feature {
	if p.Scheduler == servicemodel.SchedulerDefault {
		return atRandom
	}
	name, _, _ := p.Scheduler.Split()
	return schedulerWays[name]
}

// prefixOf returns the beginning of the names of the chains and maps for packets to a frontend of a
// kind.
func prefixOf(k *kind, outside bool) string {
	if outside {
		return k.outside
	}
	return k.prefix
}

// scheduled writes the element that leads packets to a frontend to the chain of its pool.
func (w *writer) scheduled(fe *servicemodel.Frontend, outside bool, p *servicemodel.Pool, to sink) {
	k := kindOf(fe.Key)
	l := leafOf(k, outside, p)
	w.data = append(w.data[:0], l.chain()...)
	to(w.names.get(prefixOf(k, outside), setScheduled, -1),
		nft.Elem{Key: nft.AppendFrontend(w.key[:0], fe.Key), Data: w.data, Goto: true})
}

const settingsHaveFirst = 1 // the number of the first setting

// writeSettings writes the elements of the settings. localnet is the value of the sysctl
// route_localnet before it was needed.
func (w *writer) writeSettings(r servicemodel.Rules, localnet bool, to sink) {
	lines := rendering.Settings(layoutNumber, r)
	if rendering.WantsRouteLocalnet(&r) {
		lines = append(lines, rendering.RouteLocalnetLine(localnet))
	}
	for i, line := range lines {
		w.ud = nft.AppendComment(w.ud[:0], line)
		to(setSettings, nft.Elem{Key: nft.Native32(uint32(i + settingsHaveFirst)),
			UserData: w.ud})
	}
}
