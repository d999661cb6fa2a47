package dataplanetest

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane"
)

// Backend is a backend under test.
type Backend struct {
	// Open opens it in a network namespace, given by file descriptor. It is called by many
	// goroutines, with another namespace each time.
	Open func(netns int) (dataplane.Backend, error)
	// Require skips the test if the kernel lacks what the backend needs. Nil requires nothing
	// besides network namespaces.
	Require func(*testing.T)
	// OwnConnections says that the mechanism keeps connections of its own beside conntrack's, as
	// IPVS does. It shows in what becomes of flows: see "Where the mechanisms differ" in
	// behaviour.md.
	OwnConnections bool
	// Loopback says that node ports can answer at loopback addresses
	// ([servicemodel.Node.LocalhostNodePorts]). Scenarios with that are not for other backends.
	Loopback bool
	// Neighbours says that neighbours can be masqueraded
	// ([servicemodel.Node.MasqueradeNeighbours]). Scenarios with that are not for other backends.
	Neighbours bool
	// Proxy says that the mechanism is a process that accepts connections, at addresses that the
	// node has, and makes its own to endpoints: Open sees to it that the service addresses of
	// package netnstest are the node's. What such a backend cannot do is not asked of it: see "What
	// a proxy is asked" in behaviour.md. One that is a [flows.Table] is its own connection
	// tracking.
	//
	// [flows.Table]: https://pkg.go.dev/github.com/kernlb/kernlb/conntrack/flows#Table
	Proxy bool
}

// need skips a test where the backend cannot run.
func (b *Backend) need(t *testing.T) {
	t.Helper()
	if b.Require != nil {
		b.Require(t)
	}
}
