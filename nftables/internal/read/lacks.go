package read

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Elements of an incomplete frontend are drift. The text of the drift begins with what the frontend
// lacks, because the remaining elements do not show what another program removed.

// lack names an element that the kernel should have.
func (r *Reading) lack(set string, e nft.Elem) {
	if s := r.sets[set]; s != nil {
		r.Text = append(r.Text, fmt.Sprintf("table %s: %s has no element %s",
			r.Family.Name, set, s.ElemText(e)))
	}
}

// lackSlots names the first slot that a frontend lacks.
func (r *Reading) lackSlots(slots map[string]map[string][]form.Entry, fe *servicemodel.Frontend) {
	for _, outside := range []bool{false, true} {
		v := fe.Internal
		if outside {
			v = fe.External
		}
		l, ok := r.leaf(fe, outside)
		if !ok || !v.Balances() || outside && fe.Internal == fe.External {
			continue
		}

		key := nft.AppendFrontend(nil, fe.Key)
		list := slots[l.SlotMap()][string(key)]
		if hole := slices.Index(list, form.Entry{}); hole >= 0 || len(list) == 0 {
			r.lack(l.SlotMap(), nft.Elem{Key: nft.AppendSlot(key, max(hole, 0))})
			return
		}
	}
}

// leaf returns where the slots of a frontend are. It returns false if that cannot be read.
func (r *Reading) leaf(fe *servicemodel.Frontend, outside bool) (form.Leaf, bool) {
	k, key := form.KindOf(fe.Key), nft.AppendFrontend(nil, fe.Key)
	if e := r.Elems[form.PrefixOf(k, outside)+form.SetScheduled][string(key)]; e != nil {
		return form.ParseLeaf(string(e.Data))
	}
	return form.Leaf{Kind: k, Outside: outside}, true
}

// lackRegistered names the frontends that have elements, but are missing from the set of all
// frontends of their kind. whole are the frontends that lack nothing.
func (r *Reading) lackRegistered(whole []*servicemodel.Frontend) {
	found, registries := map[servicemodel.FrontendKey]bool{}, map[string]bool{}
	for _, k := range form.Kinds {
		registries[k.Registry] = true
	}
	for name, s := range r.sets {
		for _, e := range r.Elems[name] {
			if key, ok := r.keyOf(s, *e); ok && IsRead(name) {
				found[key] = found[key] || registries[name]
			}
		}
	}

	if len(found) == 0 {
		return
	}
	for _, fe := range slices.Concat(whole, r.beside) {
		delete(found, fe.Key)
	}
	for _, key := range slices.SortedFunc(maps.Keys(found), servicemodel.FrontendKey.Compare) {
		if !found[key] {
			r.lack(form.KindOf(key).Registry, nft.Elem{Key: nft.AppendFrontend(nil, key)})
		}
	}
}
