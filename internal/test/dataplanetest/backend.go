package dataplanetest

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// Backend is a backend under test.
type Backend scenario.Backend

// need skips a test where the backend, or a network, cannot be.
func (b *Backend) need(t *testing.T) {
	t.Helper()
	netnstest.Require(t)
	if b.Require != nil {
		b.Require(t)
	}
}
