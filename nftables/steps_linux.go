package nftables

import (
	"context"
	"slices"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
)

// steps creates the tables of a large new instance in several transactions. During a transaction,
// no other program in the network namespace can commit to nf_tables: one transaction for 100,000
// services would delay all other commits for seconds.
//
// The last step creates the base chains. So no packet meets the tables before they are complete.
// Until then, the version has a mark. A process that finds the mark replaces the tables. If their
// writer still runs, its next step fails, because its epoch no longer exists.
type steps struct {
	b  *backend
	to plan.Writers
	// now is the transaction that is being written, without its tables.
	now    plan.Plan
	commit func() (backends.Stats, error)
	begun  bool     // a step was committed
	size   int      // the size in bytes at which a step ends
	set    *nft.Set // the set of the last message
	stats  backends.Stats
	err    error
	failed rawnl.Batch // the batch that the kernel refused
}

const (
	// stepTime is the target duration of a step. Another program waits for at most two steps: its
	// commit may start at the beginning of a step, and then lose against the next step.
	stepTime = 25 * time.Millisecond
	// A plan with at most this number of bytes of elements is sent at once.
	oneStep = 2 << 20
	// The sizes of a step are between these limits. The first step is small, because the speed of
	// the kernel is not known yet.
	leastStep = 64 << 10
	mostStep  = 1 << 20
	// Allocating a set of this size takes the kernel as long as a step of elements.
	hugeSet = 1 << 17
	// rangesCost is the minimum cost of an element of a set of ranges, in ordinary elements.
	rangesCost = 4
)

// inSteps reports whether a large plan is sent in steps: only for an instance that no packets reach
// yet. After another program has interrupted the steps, the plan is sent at once.
func (b *backend) inSteps(p *plan.Plan) bool {
	return !b.interrupted && b.pl.Owning == nil &&
		!slices.ContainsFunc(p.Tables, func(t *plan.TablePlan) bool {
			return t.Have.Exists && !p.Have.Unfinished || !t.Create && !t.Empty()
		})
}

// sendInSteps commits a plan in steps. If a step fails, it deletes the tables.
func (b *backend) sendInSteps(ctx context.Context, p *plan.Plan) (backends.Stats, error) {
	k := &b.kernel
	k.batch.Reset()

	// The first step starts the epoch. If the version has a number, the number is sent with the
	// tables.
	now := plan.Plan{Table: p.Table, Have: p.Have, Next: p.Next, Mark: true}
	now.Have.Number = 0
	s := &steps{b: b, to: plan.Writers{}, now: now, size: min(leastStep, k.room),
		commit: func() (backends.Stats, error) { return k.commit(ctx) }}
	for _, f := range nft.Families {
		e := nft.NewEncoder(&k.batch, f, p.Table)
		e.Pause = s.pause
		s.to[f] = e
	}

	tables := *p
	tables.Next.Home = nil // the epoch is for the first step
	tables.Write(s.to)
	s.step(true)
	s.stats.Elements, _ = p.Load()
	k.batch = s.failed
	if s.err != nil {
		s.undo(ctx, p)
		return s.stats, s.err
	}

	p.Next = s.now.Have
	return s.stats, nil
}

// pause ends a step after a message about a set if the step is large enough.
func (s *steps) pause(set *nft.Set) {
	if form.IsVersion(set.Name) { // the end of a step
		return
	}
	k, begins, size := &s.b.kernel, set != s.set, s.size
	s.set = set
	if set.Flags&nft.SetInterval != 0 {
		size = min(size, mostStep/rangesCost)
	}
	switch {
	case s.err != nil:
		k.batch.Reset()
	case k.batch.Size() >= size, begins && set.Size >= hugeSet:
		s.step(false)
	}
}

// step commits what was written since the last step.
func (s *steps) step(last bool) {
	if s.err != nil {
		return
	}
	k := &s.b.kernel
	s.now.Next.Unfinished = !last
	s.now.Write(s.to)
	start := time.Now()
	stats, err := s.commit()
	took := time.Since(start)
	s.stats = s.stats.Plus(stats)
	if s.err = err; err != nil {
		s.failed, k.batch = k.batch, rawnl.Batch{}
		return
	}

	if stats.Bytes >= leastStep/2 { // smaller steps only create sets
		size := int(float64(stats.Bytes) * float64(stepTime) / float64(took+1))
		s.size = min(max(size, leastStep), mostStep, k.room)
	}

	v := s.now.Next
	s.now = plan.Plan{Table: s.now.Table, Have: v, Mark: true,
		Next: v.Next(false, v.Home, nil, v.Unswept, v.Owners)}
	s.begun = true
	k.batch.Reset()
}

// undo deletes the tables after a failed step, unless another writer has replaced them.
func (s *steps) undo(ctx context.Context, p *plan.Plan) {
	if !s.begun {
		return
	}
	s.b.interrupted = ctx.Err() == nil
	var batch rawnl.Batch
	s.now.Encode(&batch)
	for _, t := range p.Tables {
		if t.Create {
			e := nft.NewEncoder(&batch, t.Family, p.Table)
			e.EnsureTable()
			e.DeleteTable()
		}
	}

	// If this fails, the next reading finds the mark.
	_ = s.b.kernel.reader.Conn.Commit(context.WithoutCancel(ctx), &batch, 0)
}
