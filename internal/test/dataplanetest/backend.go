package dataplanetest

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// Backend is a backend under test.
type Backend scenario.Backend

// need skips a test if the machine lacks something that the backend or a network needs.
func (b *Backend) need(t *testing.T) {
	t.Helper()
	netnstest.Require(t)
	if b.Require != nil {
		b.Require(t)
	}
}
