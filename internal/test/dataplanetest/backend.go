package dataplanetest

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// Backend is a backend under test.
type Backend struct {
	// Open opens the backend in a network namespace. Many goroutines call it, each with another
	// namespace.
	Open func(ns netns.Namespace) (backends.Backend, error)
	// Require skips the test if the kernel lacks what the backend needs. Nil requires nothing
	// besides network namespaces.
	Require func(*testing.T)
	// OwnConnections says that the mechanism keeps connections of its own beside conntrack's, as
	// IPVS does. This changes the fate of flows: see "Where the mechanisms differ" in behaviour.md.
	OwnConnections bool
	// Loopback says that node ports can answer at loopback addresses
	// ([servicemodel.Node.LocalhostNodePorts]). Other backends skip scenarios that need this.
	Loopback bool
	// Neighbours says that neighbours can be masqueraded
	// ([servicemodel.Node.MasqueradeNeighbours]). Other backends skip scenarios that need this.
	Neighbours bool
	// Answers says that [servicemodel.Node.NoEndpoints] and [servicemodel.Node.Forbidden] can be
	// other than by default. Other backends skip scenarios that need this.
	Answers bool
	// Ranges says that service ports can be ranges ([servicemodel.ServicePort.EndPort]) whose
	// packets keep their ports, without affinity of prefixes and of whole services. Other backends
	// skip scenarios that need this.
	Ranges bool
	// Proxy says that the mechanism is a process that accepts connections at addresses of the node
	// and makes its own connections to endpoints. Open must give the node the service addresses of
	// package netnstest. The suite skips scenarios that such a backend cannot pass: see "What a
	// proxy is asked" in behaviour.md. A proxy that is a [flows.Table] is its own connection
	// tracking.
	//
	// [flows.Table]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane/flows#Table
	Proxy bool
}

// need skips a test where the backend, or a network, cannot be.
func (b *Backend) need(t *testing.T) {
	t.Helper()
	netnstest.Require(t)
	if b.Require != nil {
		b.Require(t)
	}
}
