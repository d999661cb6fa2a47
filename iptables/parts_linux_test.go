package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// What cannot be sent at once comes in parts, and is the same in the end.
func TestALargeLoadComesInParts(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: ns.Fd(), Limit: 200_000})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	b.kernel.conn = conn // the readers have connections of their own
	s := manyServices(100, 5)
	r, err := dataplane.New(b, nil).Apply(t.Context(), s)
	require.NoError(t, err)
	require.Greater(t, r.Bytes, 300_000)

	other, err := New(&Config{NetNS: ns.Fd()})
	require.NoError(t, err)
	defer other.Close()
	again, err := dataplane.New(other, nil).Apply(t.Context(), s)
	require.NoError(t, err)
	require.True(t, again.Changes.Empty())
	require.Zero(t, again.Messages)
}
