package dataplane

import (
	"context"

	"github.com/kernlb/kernlb/servicemodel"
)

// NodeSource knows facts about the node that states may leave unset, such as its addresses. An
// engine with a source ([Config.Node]) completes the node of each state, and [Engine.Run] applies
// the state again when these facts have changed. Package nodeaddrs has a source that follows the
// kernel.
type NodeSource interface {
	// Complete returns n with its unset fields filled in as they are now. It does not change the
	// others. An error fails the apply, and Run retries.
	Complete(ctx context.Context, n servicemodel.Node) (servicemodel.Node, error)
	// Watch calls changed when the result of Complete may have changed.
	Watcher
}

// completed returns the state with everything that is known about the node.
func (e *Engine) completed(ctx context.Context, s servicemodel.State) (servicemodel.State, error) {
	if e.cfg.Node == nil {
		return s, nil
	}
	n, err := e.cfg.Node.Complete(ctx, s.Node())
	return s.WithNode(n), err
}
