package ipvs_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/ipvs"
)

func TestKernelNodePortsFollowTheNodesAddresses(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.engine.Run(ctx, &dataplane.RunOptions{Resync: -1}) }()
	k.engine.Set(k.state(web(), "pod2"))

	has := func(addr string) func() bool {
		at := ipvsnl.AddressService(ipvsnl.TCP, netip.AddrPortFrom(netip.MustParseAddr(addr),
			30080))
		return func() bool {
			_, err := k.vs.Service(t.Context(), at)
			return err == nil
		}
	}
	wait := func(what string, cond func() bool) {
		t.Helper()
		require.Eventually(t, cond, 20*time.Second, 20*time.Millisecond, what)
	}
	wait("the node port at the node's address", has(k.Node.IPv4.String()))
	for _, addr := range []string{"192.0.2.77", "2001:db8:50::77"} {
		bits := map[bool]string{true: "/32", false: "/128"}[netip.MustParseAddr(addr).Is4()]
		k.run("ip", "address", "add", addr+bits, "dev", "lo")
		wait("the node port at a new address", has(addr))
		k.run("ip", "address", "delete", addr+bits, "dev", "lo")
		wait("it goes with the address", func() bool { return !has(addr)() })
	}
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}
