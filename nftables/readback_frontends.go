package nftables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// interpret adds to contents what the elements mean in the model. Elements without a place in the
// model are drift.
func (r *reading) interpret(c *servicemodel.Contents) {
	r.frontends(c)
	for i, l := range []*[]netip.Addr{&c.ClusterIPs, &c.Hairpins} {
		set := addressSets[i]
		for key, e := range r.elems[set] {
			if a, ok := addressIn(r.f, set, *e); ok {
				delete(r.elems[set], key)
				*l = append(*l, a)
			}
		}
	}
	for _, s := range setsOf(r.f, &r.shape) {
		if !isRead(s.Name) {
			continue
		}
		m := r.elems[s.Name]
		for _, k := range slices.Sorted(maps.Keys(m)) {
			l := r.drift[s.Name]
			if l == nil {
				l = &nft.ElemList{}
				r.drift[s.Name] = l
			}
			l.Add(nft.Elem{Key: m[k].Key, KeyEnd: m[k].KeyEnd, Data: m[k].Data,
				Goto: m[k].Goto})
			r.text = append(r.text, fmt.Sprintf("table %s: %s: element %s", r.f.Name, s.Name,
				s.ElemText(*m[k])))
		}
	}
}

// frontends decodes the frontends and their pools, as far as possible. It adds the frontends whose
// elements are all right, with their pools, and removes these elements from the elements without a
// place.
func (r *reading) frontends(c *servicemodel.Contents) {
	var decoded servicemodel.Contents
	ranges, slots := r.readRanges(), map[string]map[string][]entry{}
	for _, k := range kinds {
		for _, s := range k.endpointMaps(r.f, &r.shape) {
			slots[s.Name] = r.readSlots(s.Name)
		}
		for _, e := range r.elems[k.registry] {
			if fe := r.frontend(k, e, ranges); fe != nil {
				decoded.Frontends = append(decoded.Frontends, fe)
			}
		}
	}
	slices.SortFunc(decoded.Frontends,
		func(a, b *servicemodel.Frontend) int { return a.Key.Compare(b.Key) })
	views := map[servicemodel.PoolID][]*poolView{}
	for _, fe := range decoded.Frontends {
		r.view(views, slots, fe, false)
		if fe.External != fe.Internal {
			r.view(views, slots, fe, true)
		}
	}
	for _, l := range views {
		usual := slices.MaxFunc(l, func(a, b *poolView) int { return a.n - b.n })
		decoded.Pools = append(decoded.Pools, usual.pool)
	}

	t, err := servicemodel.NewTable(decoded)
	if err != nil { // impossible: keys and identities come from maps
		return
	}
	used := map[servicemodel.PoolID]bool{}
	for _, fe := range decoded.Frontends {
		if !hasPools(t, fe) || !r.verify(t, fe) {
			continue
		}
		c.Frontends = append(c.Frontends, fe)
		internal, external := t.PoolsOf(fe)
		for _, p := range []*servicemodel.Pool{internal, external} {
			if p != nil && !used[p.ID] {
				used[p.ID] = true
				c.Pools = append(c.Pools, p)
			}
		}
	}
}

// poolView is one version of a pool, and the number n of frontends that have it.
type poolView struct {
	pool *servicemodel.Pool
	n    int
}

// readSlots collects the endpoints in a map by their frontend's key. A missing slot is an invalid
// endpoint.
func (r *reading) readSlots(set string) map[string][]entry {
	m := make(map[string][]entry, len(r.elems[set])/4)
	for _, e := range r.elems[set] {
		n := len(e.Key) - 4
		if n < 0 {
			continue
		}
		slot := binary.NativeEndian.Uint32(e.Key[n:])
		d := nft.Reader{Bytes: e.Data}
		ep := d.Endpoint(r.f.AddrLen)
		if slot >= maxSlots || !d.Done() {
			continue
		}
		l := m[string(e.Key[:n])]
		for len(l) <= int(slot) {
			l = append(l, entry{})
		}
		l[slot], _ = parseEntry(ep, nft.CommentOf(e.UserData))
		m[string(e.Key[:n])] = l
	}
	return m
}

// frontend decodes one frontend. It returns nil if that is not possible.
func (r *reading) frontend(k *kind, e *nft.Elem,
	ranges map[string][]netip.Prefix) *servicemodel.Frontend {
	rd := nft.Reader{Bytes: e.Key}
	key := rd.Frontend(r.f.Any, k == kindNodePort)
	if !rd.Done() || !key.Protocol.Valid() || k == kindService && key.NodePort() {
		return nil
	}
	// An element with other padding is another element.
	if string(nft.AppendFrontend(nil, key)) != string(e.Key) {
		return nil
	}
	fe, err := rendering.ParseComment(nft.CommentOf(e.UserData), key, nil)
	if err != nil {
		return nil
	}
	if k == kindService && r.elems[setRestricted][string(e.Key)] != nil {
		fe.Sources = append([]netip.Prefix{}, ranges[string(e.Key)]...)
		slices.SortFunc(fe.Sources, netip.Prefix.Compare)
	}
	return fe
}

// readRanges collects the source ranges by their frontend's key.
func (r *reading) readRanges() map[string][]netip.Prefix {
	m := map[string][]netip.Prefix{}
	for _, e := range r.elems[setSources] {
		n := len(e.Key) - r.f.AddrLen
		if n < 0 || len(e.KeyEnd) != len(e.Key) {
			continue
		}
		first, _ := netip.AddrFromSlice(e.Key[n:])
		last, _ := netip.AddrFromSlice(e.KeyEnd[n:])
		if p, ok := nft.RangePrefix(first, last); ok {
			m[string(e.Key[:n])] = append(m[string(e.Key[:n])], p)
		}
	}
	return m
}

// view reads the pool of a frontend for clients inside or outside. If frontends of one pool differ,
// the version that most of them have counts.
func (r *reading) view(views map[servicemodel.PoolID][]*poolView,
	slots map[string]map[string][]entry, fe *servicemodel.Frontend, outside bool) {
	v := fe.Internal
	if outside {
		v = fe.External
	}
	id, ok := fe.Pool(v)
	if !ok {
		return
	}
	k, key := kindOf(fe.Key), nft.AppendFrontend(nil, fe.Key)
	l := leaf{kind: k, outside: outside}
	if e := r.elems[prefixOf(k, outside)+setScheduled][string(key)]; e != nil {
		if l, ok = parseLeaf(string(e.Data)); !ok {
			return
		}
	}
	list := slots[l.slotMap()][string(key)]
	if len(list) == 0 || l.way != byHash && slices.Contains(list, entry{}) {
		return
	}
	first := r.elems[l.slotMap()][string(nft.AppendSlot(key, 0))]
	_, s := parseEntry(netip.AddrPort{}, nft.CommentOf(first.UserData))
	p := poolFrom(id, s, list, l.way)
	if p == nil {
		return
	}
	for _, other := range views[id] {
		if other.pool.Equal(p) {
			other.n++
			return
		}
	}
	views[id] = append(views[id], &poolView{p, 1})
}

// verify compares the elements of a frontend with the right ones. If all are right, it removes them
// from the elements without a place.
func (r *reading) verify(t *servicemodel.Table, fe *servicemodel.Frontend) bool {
	good := true
	r.w.elements(t, fe, func(set string, e nft.Elem) {
		f := r.elems[set][string(e.Key)+string(e.KeyEnd)]
		good = good && f != nil && bytes.Equal(f.Data, e.Data) && f.Goto == e.Goto &&
			nft.CommentOf(f.UserData) == nft.CommentOf(e.UserData)
	})
	if good {
		r.w.elements(t, fe, func(set string, e nft.Elem) {
			delete(r.elems[set], string(e.Key)+string(e.KeyEnd))
		})
	}
	return good
}

// parseEntry reads the comment of an entry. The scheduler is empty if the comment names none.
func parseEntry(ep netip.AddrPort, comment string) (e entry, s servicemodel.Scheduler) {
	e = entry{endpoint: ep, slot: -1}
	for word := range strings.FieldsSeq(comment) {
		if v, ok := strings.CutPrefix(word, schedulerWord); ok {
			parsed, err := servicemodel.ParseScheduler(v)
			name, _, _ := parsed.Split()
			if _, ok := schedulerWays[name]; ok && err == nil {
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

// unitsFrom adds the slots and units that entries describe to a pool. It returns nil if no pool has
// these units.
func unitsFrom(p *servicemodel.Pool, l []entry) *servicemodel.Pool {
	slot := map[netip.AddrPort]int32{}
	for _, e := range l {
		switch at, found := slot[e.endpoint]; {
		case !e.endpoint.IsValid():
			p.Units = append(p.Units, -1)
			continue
		case !found && (e.slot < 0 || int(e.slot) >= len(l)):
			return nil
		case !found:
			slot[e.endpoint] = e.slot
			for len(p.Slots) <= int(e.slot) {
				p.Slots = append(p.Slots, servicemodel.Slot{})
			}
			p.Slots[e.slot] = servicemodel.Slot{Endpoint: e.endpoint, Weight: max(e.weight, 1)}
			p.Units = append(p.Units, e.slot)
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

// poolFrom returns the pool that the entries in the map of a way describe, or nil. A later check
// compares all entries with those of the pool.
func poolFrom(id servicemodel.PoolID, s servicemodel.Scheduler, l []entry,
	in feature) *servicemodel.Pool {
	p := &servicemodel.Pool{ID: id, Scheduler: s}
	if wayOf(p) != in {
		return nil
	}
	if in == byHash && slices.ContainsFunc(l, func(e entry) bool { return e.slot >= 0 }) {
		return unitsFrom(p, l)
	}
	for _, e := range l {
		slot, n := servicemodel.Slot{Endpoint: e.endpoint, Weight: max(e.weight, 1)}, len(p.Slots)
		switch {
		case in == byMaglev && e.slot >= 0 && int(e.slot) < len(l):
			for len(p.Slots) <= int(e.slot) {
				p.Slots = append(p.Slots, servicemodel.Slot{})
			}
			p.Slots[e.slot] = slot
		case in == byMaglev: // a further entry of a slot
		case s != servicemodel.RoundRobin && n > 0 && p.Slots[n-1].Endpoint == e.endpoint:
			p.Slots[n-1].Weight++ // equal endpoints in a row are one slot with a weight
		default:
			p.Slots = append(p.Slots, slot)
		}
	}
	if in == byMaglev && p.MaglevSize() != len(l) {
		return nil
	}
	return p
}
