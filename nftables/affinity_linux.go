package nftables

import (
	"context"
	"hash/maphash"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
)

// forgetClients adds to the plan the deletion of the clients that lead to endpoints no longer to be used.
func (b *Backend) forgetClients(ctx context.Context, p *plan, g *forgetter) error {
	if g == nil {
		return nil
	}
	for i := range p.families {
		fp := &p.families[i]
		if fp.create || len(b.pl.have[i].shape.affinity) == 0 || len(g.byKey[i]) == 0 {
			continue
		}
		learnt, err := b.kernel.readLearnt(ctx, fp.f, b.pl.table)
		if err != nil {
			return err
		}
		if g.looked[i] && learnt == g.learnt[i] {
			continue // nobody was remembered since the map was read
		}
		g.looked[i], g.learnt[i] = true, learnt
		for n := range affinityMaps {
			if err := b.forgetIn(ctx, fp, i, g, affinityMap(n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetIn adds what must go from one of the affinity maps.
func (b *Backend) forgetIn(ctx context.Context, fp *familyPlan, i int, g *forgetter, name string) error {
	if !fp.has(name) {
		return nil
	}
	ops := new(setOps)
	if err := b.findClients(ctx, i, g, name, &ops.del); err != nil {
		return err
	}
	if ops.del.Len > 0 {
		fp.ops[name] = ops
	}
	return nil
}

// findTries bounds how often an affinity map is read since the kernel was rehashing it.
const findTries = 5

// findClients lists the entries of an affinity map to delete.
func (b *Backend) findClients(ctx context.Context, i int, g *forgetter, name string, to *nftwire.ElemList) error {
	f := nftwire.Families[i]
	for try := range findTries {
		count, err := b.kernel.readCount(ctx, f, b.pl.table, name)
		if err != nil || count == 0 {
			return err
		}
		*to = nftwire.ElemList{}
		distinct, err := b.readClients(ctx, i, g, name, to, max(count, 0))
		if err != nil || count < 0 || distinct >= count {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(1+try) * 5 * time.Millisecond):
		}
	}
	return nil // clients come and go while it is read: this is as good as it gets
}

// readClients reads an affinity map once and returns how many different entries it saw: while the map is rehashed, some come twice and as many
// not at all. An entry that is about to expire is left out: it would be gone when the transaction comes to it, and fail it.
func (b *Backend) readClients(ctx context.Context, i int, g *forgetter, name string, to *nftwire.ElemList, expect int) (int, error) {
	const soon = 2000 // milliseconds
	req := b.kernel.get(nftwire.Families[i], nftwire.MsgGetSetElem, "elements of map", name)
	req.Text(1, b.pl.table)
	req.Text(2, name)
	seed := maphash.MakeSeed()
	seen := make(map[uint64]struct{}, expect)
	one := func(e nftwire.Elem) error {
		h := maphash.Bytes(seed, e.Key)
		if _, twice := seen[h]; twice {
			return nil
		}
		seen[h] = struct{}{}
		if e.Expiry > soon && g.matches(i, e) {
			to.Add(nftwire.Elem{Key: e.Key})
		}
		return nil
	}
	reset := func() {
		*to = nftwire.ElemList{}
		clear(seen)
	}
	err := b.kernel.conn.DumpRetry(ctx, req, reset, func(m nfnl.Message) error { return nftwire.DecodeElements(m.Attrs, one) })
	return len(seen), err
}

// sweep deletes the clients that were given an endpoint between the reading of the map and the commit that took the endpoint away. None
// can come after that.
func (b *Backend) sweep(ctx context.Context, p *plan, g *forgetter, stats *dataplane.Stats) error {
	if g == nil {
		return nil
	}
	late := &plan{table: p.table}
	for i := range p.families {
		late.families[i] = familyPlan{f: nftwire.Families[i], sets: p.families[i].sets, next: p.families[i].next, ops: map[string]*setOps{}}
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
