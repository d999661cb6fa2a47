package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// planOwners plans the index, and the addresses that owners share. A commit of a whole state does
// not maintain the index, and so empties it.
func (pl *Planner) planOwners(p *Plan) {
	for _, t := range p.Tables {
		switch {
		case !t.next.Exists:
		case pl.Owning != nil:
			pl.indexOwners(p, t)
		case !t.Create && !t.Renew:
			t.flushed = form.OwnerSets(t.Family, &t.next.Shape)
		}
	}

	p.Mark = pl.Owning != nil && pl.Owning.Whole
}

// indexOwners plans the index of one table.
func (pl *Planner) indexOwners(p *Plan, t *TablePlan) {
	o := pl.Owning
	was, before, now := t.Have.Index, form.NewOwnership(), form.NewOwnership()
	owners := pl.ownersAfter(p.Changes)
	now.Parts(t.Family, owners, p.Changes.New)
	if t.Create || t.Renew {
		was = form.NewOwnership()
	} else if o.Whole {
		t.flushed = form.OwnerSets(t.Family, &t.next.Shape)
	} else {
		before.Parts(t.Family, owners, p.Changes.Old)
		before.Users[form.SetHairpins] = form.AddrUsers{}
		for _, owner := range owners { // the index is the authority on the owners of hairpins
			for a := range was.Hairpins[owner] {
				before.Users[form.SetHairpins][a]++
			}
		}
	}

	for _, owner := range owners {
		t.differ(func(to form.Sink) { was.Elements(owner, to) },
			func(to form.Sink) { now.Elements(owner, to) })
	}

	for _, set := range form.AddressSets {
		pl.users(t, set, was.Users[set], before.Users[set], now.Users[set])
	}
	t.index = now
}

// users plans a set of addresses. was is the number of owners that each address has in the kernel;
// before counts only the owners that change. now is the number of changing owners that need the
// address after the plan; users adds the other owners. If everything was read, there are no other
// owners.
func (pl *Planner) users(t *TablePlan, set string, was, before, now form.AddrUsers) {
	all := maps.Clone(now)
	maps.Copy(all, was)
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		n := now[a]
		if !pl.Owning.Whole {
			n += max(0, was[a]-before[a])
		}
		now[a] = n
		if n == was[a] {
			continue
		}
		if was[a] > 0 {
			t.del(set, nft.Elem{Key: form.AppendAddrKey(nil, set, a)})
		}
		if n > 0 {
			t.add(set, form.UsersElem(set, a, n))
		}
	}
}
