package kubeapi

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// nodeGate opens when the Node object has everything that the first state needs.
type nodeGate struct {
	name             string
	addresses, cidrs bool          // whether the object must have them
	seen             chan struct{} // has an element once the object has them
	eligible         atomic.Bool   // whether the node may get new connections
}

func newNodeGate(c *kube.Config) *nodeGate {
	g := &nodeGate{name: c.Node.Name, seen: make(chan struct{}, 1)}
	if g.name != "" {
		g.addresses, g.cidrs = len(c.Node.Addresses) == 0, c.NodeCIDRs
	}
	return g
}

// toBeDeleted is the taint of the cluster autoscaler on a node that it will delete.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// see examines the object. One goroutine calls it.
func (g *nodeGate) see(n *corev1.Node) {
	g.eligible.Store(n.DeletionTimestamp.IsZero() &&
		!slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == toBeDeleted
		}))

	if g.addresses && len(n.Status.Addresses) == 0 || g.cidrs && len(n.Spec.PodCIDRs) == 0 {
		return
	}
	select {
	case g.seen <- struct{}{}:
	default:
	}
}

// wait waits until the gate is open or ctx is done, which is not an error. After the timeout it
// returns ErrNoNode. For pod CIDRs it waits ten times as long, as kube-proxy does. If it waits, it
// logs the reason, because nothing else happens during that time.
func (g *nodeGate) wait(ctx context.Context, timeout time.Duration, log *slog.Logger) error {
	if !g.addresses && !g.cidrs {
		return nil
	}
	want := "addresses"
	if g.cidrs {
		timeout, want = 10*timeout, "pod CIDRs"
	}
	select {
	case <-g.seen:
		return nil
	default:
		log.InfoContext(ctx, "the first state waits for the node", logkey.Reason,
			fmt.Sprintf("no Node %q with %s yet", g.name, want))
	}

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-g.seen:
		return nil
	case <-timer.C:
		return fmt.Errorf("%w: no Node %q with %s within %v", ErrNoNode, g.name, want, timeout)
	}
}
