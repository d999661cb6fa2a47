package read

import (
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// queryFunc requests an element by set and key.
type queryFunc func(set string, key []byte)

// moreSlots requests the slots of the frontends that are left over: the maximum number of slots for
// the class of their pool, or for the chain of the pool's scheduler. It also requests the ports of
// mapped ranges.
func (r *Reading) moreSlots(query queryFunc) {
	for _, k := range r.Shape.Kinds() {
		for key, e := range r.Elems[k.Registry] {
			r.moreShifts(query, k, e)
			for outside, over := range []string{form.SetOver, form.SetExternalOver} {
				l := r.leafOf(k, outside == 1, over, key)
				set := l.SlotMap()
				for slot := 0; r.Has(set) && slot < l.Slots; slot++ {
					slotKey := nft.AppendSlot([]byte(key), slot)
					if r.Elems[set][string(slotKey)] == nil {
						query(set, slotKey)
					}
				}
			}
		}
	}
}

// moreShifts requests the endpoints' ports of a frontend if it is a mapped range.
func (r *Reading) moreShifts(query queryFunc, k *form.Kind, e *nft.Elem) {
	set := k.Prefix + form.SetShifts
	if fe := r.frontend(k, e, nil); fe != nil && fe.Shifted && r.Has(set) {
		for at := range fe.Key.EndPort - fe.Key.Port + 1 {
			port := nft.AppendPort(nft.AppendFrontend(nil, fe.Key), fe.Key.Port+at)
			if r.Elems[set][string(port)] == nil {
				query(set, port)
			}
		}
	}
}

// leafOf derives the slots that a frontend may have from the found elements.
func (r *Reading) leafOf(k *form.Kind, outside bool, over, key string) form.Leaf {
	l := form.Leaf{Kind: k, Outside: outside, Slots: form.MostSlots(0)}
	for than := range form.AllClasses - 1 {
		if r.Elems[k.Prefix+form.OverName(over, than)][key] != nil {
			l.Slots = form.MostSlots(than + 1)
		}
	}

	if e := r.Elems[form.PrefixOf(k, outside)+form.SetScheduled][key]; e != nil {
		if to, ok := form.ParseLeaf(string(e.Data)); ok && to.Kind == k && to.Outside == outside {
			return to
		}
	}

	return l
}

// slotsAfterWanted checks whether the desired frontends have one slot too many, if their map has
// more elements than were found. Maps whose numbers the kernel does not report are dumped later.
func (r *Reading) slotsAfterWanted(query queryFunc) {
	for fe := range form.FrontendsOf(r.want, r.Family) {
		internal, external := r.want.PoolsOf(fe)
		for i, p := range []*servicemodel.Pool{internal, external} {
			if p == nil {
				continue
			}
			set := form.KindOf(fe.Key).SlotMap(i == 1, form.WayOf(p))
			if !r.hasLength(set) || r.complete(set) {
				continue
			}
			query(set, nft.AppendSlot(nft.AppendFrontend(nil, fe.Key), form.EntryCount(p)))
			for at, unit := range p.Units {
				if unit < 0 {
					query(set, nft.AppendSlot(nft.AppendFrontend(nil, fe.Key), at))
				}
			}
		}
	}
}

// slotsLeftOver requests the slots of the frontends that are left over. A map that is dumped anyway
// needs no questions.
func (r *Reading) slotsLeftOver(query queryFunc) {
	if r.want != nil || r.hasLength(form.KindService.Prefix+form.SetEndpoints) {
		r.moreSlots(query)
	}
}

// hairpinsLeftOver requests the hairpins of undesired endpoints that were found, unless a dump
// reads the set.
func (r *Reading) hairpinsLeftOver(query queryFunc) {
	asked := map[netip.Addr]bool{}
	for _, k := range r.Shape.Kinds() {
		for _, set := range k.EndpointMaps(r.Family, &r.Shape) {
			for _, e := range r.Elems[set.Name] {
				rd := nft.Reader{Bytes: e.Data}
				a := k.ReadEndpoint(&rd, r.Family).Addr()
				if r.hasLength(form.SetHairpins) && a.IsValid() && !asked[a] &&
					!r.want.HasHairpin(a) {
					asked[a] = true
					query(form.SetHairpins, form.AppendAddrKey(nil, form.SetHairpins, a))
				}
			}
		}
	}
}
