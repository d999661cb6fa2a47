package conntrack

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// batchFlows is the number of flows that one system call changes.
const batchFlows = 512

// Delete deletes exactly the given flows, many at a time. It may read them from [Table.Flows] while
// it deletes. It returns the number of deleted flows. All other flows had already ended, or had
// been replaced by new flows.
//
// A flow that has changed since it was listed is not deleted. The kernel looks up a flow by its
// reply tuple and its ID, so a flow that was created again with a different endpoint is not
// deleted. [Flow.ID] describes the limitation: a flow that was created again with the same endpoint
// may be mistaken for the old flow.
//
// After an error, which may come from the sequence, it returns the number of deletions so far.
func (t *Table) Delete(ctx context.Context, flows iter.Seq2[Flow, error]) (deleted int, err error) {
	err = inBatches(flows, func(batch []Flow) error {
		var b rawnl.Batch
		for i := range batch {
			appendDelete(&b, &batch[i])
		}
		missing, err := t.send(ctx, &b, syscall.ENOENT, batch)
		if err == nil {
			deleted += len(batch) - missing
		}
		return err
	})
	if err != nil {
		return deleted, fmt.Errorf("delete flows: %w", explain(err))
	}
	return deleted, nil
}

// Create adds flows to the table, for a program that moves connections from one machine to another.
// It uses the tuples, the timeout, the mark, the TCP state and the bits seen-reply, assured and
// fixed-timeout of a flow. If the reply tuple is not the inverse of the original tuple, the kernel
// will translate packets. TCP windows are not checked for such flows.
//
// It returns the number of created flows; the tuples of the other flows were already in use. It
// returns [ErrTableFull] when the table is full.
func (t *Table) Create(ctx context.Context, flows iter.Seq2[Flow, error]) (created int, err error) {
	err = inBatches(flows, func(batch []Flow) error {
		var b rawnl.Batch
		for i := range batch {
			if err := checkFlow(&batch[i]); err != nil {
				return err
			}
			appendCreate(&b, &batch[i])
		}

		existing, err := t.send(ctx, &b, syscall.EEXIST, batch)
		if err == nil {
			created += len(batch) - existing
		}
		return err
	})
	if err != nil {
		return created, fmt.Errorf("create flows: %w", explain(err))
	}
	return created, nil
}

// checkFlow refuses flows that cannot be written.
func checkFlow(f *Flow) error {
	family := f.family()
	for _, a := range []struct {
		name string
		addr nfFamily
	}{
		{"Original.Dst", family},
		{"Original.Src", familyOf(f.Original.Src.Addr())},
		{"Reply.Src", familyOf(f.Reply.Src.Addr())},
		{"Reply.Dst", familyOf(f.Reply.Dst.Addr())},
	} {
		if a.addr == familyAny || a.addr != family {
			return fmt.Errorf("flow %s: %s: no address, or of another family", *f, a.name)
		}
	}

	switch {
	case f.Protocol == 0:
		return fmt.Errorf("flow %s: Protocol: not set", *f)
	case f.Timeout < time.Second:
		return fmt.Errorf("flow %s: Timeout: %s is less than a second", *f, f.Timeout)
	}

	return nil
}

// inBatches calls do with up to batchFlows flows at a time. It reuses the slice.
func inBatches(flows iter.Seq2[Flow, error], do func([]Flow) error) error {
	batch := make([]Flow, 0, batchFlows)
	for f, err := range flows {
		if err != nil {
			if len(batch) > 0 {
				return errors.Join(do(batch), err)
			}
			return err
		}

		if batch = append(batch, f); len(batch) == batchFlows {
			if err := do(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}

	if len(batch) == 0 {
		return nil
	}
	return do(batch)
}

// send sends the requests of b, one for each flow. It returns the number of requests that failed
// with the errno expected. Any other failure is an error.
func (t *Table) send(ctx context.Context, b *rawnl.Batch, expected syscall.Errno, flows []Flow) (
	failed int, err error) {
	refusals, err := t.sendAll(ctx, b)
	for _, e := range refusals {
		if e.Errno != expected {
			return 0, fmt.Errorf("%s: %w", flows[e.Index], e)
		}
	}

	return len(refusals), err
}

// sendAll sends the requests of b. It returns the kernel's refusals separately from other errors.
func (t *Table) sendAll(ctx context.Context, b *rawnl.Batch) (rawnl.OpErrors, error) {
	_, err := t.conn.SendAll(ctx, b, nil)
	return refusals(err)
}

// refusals separates the kernel's refusals of single requests from other errors.
func refusals(err error) (rawnl.OpErrors, error) {
	switch e := err.(type) {
	case *rawnl.OpError:
		return rawnl.OpErrors{e}, nil
	case rawnl.OpErrors:
		return e, nil
	}

	return nil, err
}
