package conntrack

import (
	"context"
	"fmt"
	"syscall"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Lookup asks the kernel for single flows. For each given flow it returns the flow that has the
// same original tuple now, or nil if there is none. It may be another flow, to another endpoint.
// Then it usually has another ID, see [Flow.ID].
//
// After an error, Lookup returns the flows found so far, and nil does not mean that a flow is gone.
func (t *Table) Lookup(ctx context.Context, flows []Flow) ([]*Flow, error) {
	found, err := t.lookup(ctx, flows)
	if err != nil {
		return found, fmt.Errorf("look up flows: %w", explain(err))
	}
	return found, nil
}

func (t *Table) lookup(ctx context.Context, flows []Flow) ([]*Flow, error) {
	var b rawnl.Batch
	for i := range flows {
		appendGet(&b, &flows[i])
	}
	now, found := make([]Flow, len(flows)), make([]*Flow, len(flows))
	err := t.conn.QueryAll(ctx, &b, func(i int, m rawnl.Message) error {
		if err := parseFlow(m.Attrs, &now[i], wantAll); err != nil {
			return err
		}
		found[i] = &now[i]
		return nil
	})
	missing, err := refusals(err)
	for _, e := range missing {
		if e.Errno != syscall.ENOENT {
			return found, fmt.Errorf("%s: %w", flows[e.Index], e)
		}
	}
	return found, err
}

func wantAll(*Flow) bool { return true }
