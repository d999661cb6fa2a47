package rawnl

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/stretchr/testify/require"
)

// newNetNS returns the name of a network namespace that exists until the test ends.
func newNetNS(t testing.TB) netns.Namespace {
	t.Helper()
	return nstest.New(t).NetNS()
}

// dialNew returns a connection in a new network namespace.
func dialNew(t testing.TB) *Conn {
	t.Helper()
	return dialIn(t, newNetNS(t))
}

// dialIn returns a connection in the network namespace ns.
func dialIn(t testing.TB, ns netns.Namespace) *Conn {
	t.Helper()
	c := ok(Dial(&Config{NetNS: ns}))(t)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}
