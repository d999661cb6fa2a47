package nftables

import (
	"context"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nfnl"
)

// forgetClients adds to the plan the deletion of the clients that lead to endpoints no longer to be used.
func (b *Backend) forgetClients(ctx context.Context, p *plan, g *forgetter) error {
	if g == nil {
		return nil
	}
	for i := range p.families {
		fp := &p.families[i]
		m := fp.set(mapAffinity)
		if m == nil || fp.create || len(b.pl.have[i].shape.affinity) == 0 || len(g.byKey[i]) == 0 {
			continue
		}
		ops := &setOps{set: m}
		if err := b.findClients(ctx, i, g, &ops.del); err != nil {
			return err
		}
		if ops.del.n > 0 {
			fp.ops[mapAffinity] = ops
		}
	}
	return nil
}

// findClients reads the affinity map and lists the entries to delete. An entry that is about to expire is left out: it would be gone when the
// transaction comes to it, and fail it.
func (b *Backend) findClients(ctx context.Context, i int, g *forgetter, to *elemList) error {
	const soon = 2000 // milliseconds
	f := families[i]
	req := b.kernel.get(f, msgGetSetElem, "elements of map", mapAffinity)
	req.Text(1, b.pl.table)
	req.Text(2, mapAffinity)
	first := *to
	seen := map[string]bool{} // an element may come twice, and can be deleted once only
	return b.kernel.conn.DumpRetry(ctx, req, func() { *to = first; clear(seen) }, func(m nfnl.Message) error {
		it := nfnl.Attrs(m.Attrs)
		for it.Next() {
			if it.Type() != 3 {
				continue
			}
			if err := decodeElems(it.Data(), func(e elem) error {
				if e.expiry > soon && g.matches(i, e) && !seen[string(e.key)] {
					seen[string(e.key)] = true
					to.add(elem{key: e.key})
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return it.Err()
	})
}

// sweep deletes the clients that were given an endpoint between the reading of the map and the commit that took the endpoint away. None
// can come after that.
func (b *Backend) sweep(ctx context.Context, p *plan, g *forgetter, stats *dataplane.Stats) error {
	if g == nil {
		return nil
	}
	late := &plan{table: p.table}
	for i := range p.families {
		late.families[i] = familyPlan{f: families[i], sets: p.families[i].sets, next: p.families[i].next, ops: map[string]*setOps{}}
	}
	if err := b.forgetClients(ctx, late, g); err != nil {
		return err
	}
	s, err := b.send(ctx, late)
	stats.Messages += s.Messages
	stats.Bytes += s.Bytes
	stats.Elements += s.Elements
	return err
}
