package nodeaddrs_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/servicemodel"
)

// Requests fail, one after the other, while an address is added. Either the address is in the
// result, or the error names the fault and the next result has the address.
func TestEachRequestGoesWrong(t *testing.T) {
	t.Parallel()
	n := newNode(t, "w", "missing")
	n.ip("link set v up", "link set w up", "addr add 192.0.2.1/24 dev w")
	f := rawnltest.NewFaults()
	n.Wrap(f.Call)
	added := 0
	for _, fault := range rawnltest.Calls(netlink.ErrDumpInterrupted) {
		for call := range 4 { // one call at a time, and then no call
			added++
			n.ip(fmt.Sprintf("addr add 198.51.100.%d/24 dev v", added))
			f.Arm(fault, call)
			node, err := n.Complete(t.Context(), servicemodel.Node{})
			hits := f.Disarm()
			require.Equal(t, fault.Dump && call > 1, hits == 0, fault.Name)
			if err == nil {
				require.Len(t, node.Addresses, added, fault.Name)
			} else if fault.Errno != 0 {
				require.ErrorIs(t, err, fault.Errno)
			} else {
				require.Zero(t, call, "each dump is interrupted")
				require.ErrorIs(t, err, netlink.ErrDumpInterrupted)
			}

			node, err = n.Complete(t.Context(), servicemodel.Node{})
			require.NoError(t, err, fault.Name)
			require.Len(t, node.Addresses, added, fault.Name)
		}
	}
}
