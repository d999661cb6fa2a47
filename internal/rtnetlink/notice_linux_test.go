package rtnetlink_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/rtnetlink"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/threadns"
)

// newNS returns a network namespace, and a function that runs ip there.
func newNS(t *testing.T) (*threadns.NS, func(args ...string)) {
	t.Helper()
	n := nstest.New(t)
	ns, err := threadns.Open(n.NetNS())
	require.NoError(t, err)
	t.Cleanup(func() { ns.Close() })
	return ns, func(args ...string) {
		t.Helper()
		nstest.Exec(t, n, "", append([]string{"ip"}, args...)...)
	}
}

// A change is seen by each look until a listing begins.
func TestALookSeesWhatHasChanged(t *testing.T) {
	t.Parallel()
	ns, ip := newNS(t)
	var a rtnetlink.Addresses
	require.NoError(t, a.Open(ns))
	defer a.Close()
	require.True(t, a.Look(), "nothing is known yet")
	for _, change := range [][]string{
		{"address", "add", "192.0.2.1/32", "dev", "lo"},
		{"address", "delete", "192.0.2.1/32", "dev", "lo"},
		{"link", "add", "v", "type", "veth", "peer", "name", "w"},
		{"link", "delete", "v"},
	} {
		a.Listing()
		require.False(t, a.Look(), change)
		ip(change...)
		require.True(t, a.Look(), change)
		require.True(t, a.Look(), "nothing was listed since")
	}

	a.Listing()
	a.Suspect()
	require.True(t, a.Look())
	ip("address", "add", "192.0.2.1/32", "dev", "lo")
	a.Listing()
	require.False(t, a.Look(), "what was there before the listing is in the list")
}

// Notices for which the socket has no room are also changes, even after the other notices were
// read.
func TestLostNoticesAreChanges(t *testing.T) {
	t.Parallel()
	ns, ip := newNS(t)
	var a rtnetlink.Addresses
	require.NoError(t, a.Open(ns))
	defer a.Close()
	require.NoError(t, unix.SetsockoptInt(a.Socket().GetFd(), unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	for i := range 50 {
		ip("address", "add", fmt.Sprintf("192.0.2.%d/32", i+1), "dev", "lo")
	}
	require.True(t, a.Look())
	a.Listing()
	require.False(t, a.Look())
	ip("address", "add", "198.51.100.1/32", "dev", "lo")
	require.True(t, a.Look(), "it goes on")
}
