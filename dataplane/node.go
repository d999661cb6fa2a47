package dataplane

import (
	"context"

	"github.com/kernlb/kernlb/servicemodel"
)

// NodeSource knows of the node what states may leave open, such as its addresses: an engine that is
// given one ([Config.Node]) completes the node of each state, and [Engine.Run] applies the state
// again when that has changed. Package nodeaddrs has one that follows the kernel.
type NodeSource interface {
	// Complete returns n with what it leaves open as it is now, and what it says untouched. An
	// error fails the apply, which Run tries again.
	Complete(ctx context.Context, n servicemodel.Node) (servicemodel.Node, error)
	// Watch calls changed when Complete may give something else than it did last.
	Watcher
}

// completed returns the state with all that is known of the node.
func (e *Engine) completed(ctx context.Context, s servicemodel.State) (servicemodel.State, error) {
	if e.node == nil {
		return s, nil
	}
	n, err := e.node.Complete(ctx, s.Node())
	return s.WithNode(n), err
}
