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
}

// need skips a test where the backend cannot run.
func (b *Backend) need(t *testing.T) {
	t.Helper()
	if b.Require != nil {
		b.Require(t)
	}
}
