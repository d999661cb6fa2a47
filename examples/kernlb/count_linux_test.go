package main

import (
	"net/netip"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

func TestShowCounters(t *testing.T) {
	t.Parallel()
	c, connect := servedWeb(t, nftables.Name)
	code, _, errs := kernlb(t, c.Node.NS, "show", "-counters")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "counters are off")
	require.Contains(t, errs, "kernlb count switches them on")
	code, _, errs = kernlb(t, c.Node.NS, "count")
	require.Equal(t, exitDone, code, errs)
	connect(3)
	code, out, errs := kernlb(t, c.Node.NS, "show", "-counters")
	require.Equal(t, exitDone, code, errs)
	require.Regexp(t, `^FRONTEND +SERVICE +CONNECTIONS +PACKETS IN .*
10.96.0.1:80/tcp +default/web:http +3 +\d+ +\d+ +\d+ +\d+
  -> 10.244.1.2:8080 +3 +\d+ +\d+ +\d+ +\d+
$`, out)
	code, out, errs = kernlb(t, c.Node.NS, "show", "-counters", "-o", "json")
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, out, `"connections": 3`)
	code, _, errs = kernlb(t, c.Node.NS, "count", "-off")
	require.Equal(t, exitDone, code, errs)
	code, _, _ = kernlb(t, c.Node.NS, "show", "-counters")
	require.Equal(t, exitFailed, code)
}

// What conntrack has is shown with packets if it counts these.
func TestShowConntrack(t *testing.T) {
	t.Parallel()
	c, connect := servedWeb(t, nftables.Name)
	connect(2)
	show := func() (string, string) {
		code, out, errs := kernlb(t, c.Node.NS, "show", "-conntrack")
		require.Equal(t, exitDone, code, errs)
		return out, errs
	}
	out, errs := show()
	require.Regexp(t, `^FRONTEND +SERVICE +CONNECTIONS
10.96.0.1:80/tcp +default/web:http +2
  -> 10.244.1.2:8080 +2
$`, out)
	require.Contains(t, errs, "conntrack counts no packets: sysctl -w")
	code, out, errs := kernlb(t, c.Node.NS, "show", "-conntrack", "-o", "json")
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, out, `"onlyConnections": true`)
	const acct = "net/netfilter/nf_conntrack_acct"
	require.NoError(t, c.Node.NS.SetSysctl(acct, "1"))
	connect(1)
	out, errs = show()
	require.Empty(t, errs)
	require.Regexp(t, `(?m)^  -> 10.244.1.2:8080 +3 +\d+ +\d+ +\d+ +\d+$`, out)
	code, _, errs = kernlb(t, c.Node.NS, "show", "-conntrack", "-counters")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "-counters or -conntrack")
}

// IPVS counts by itself, and there is nothing to switch on.
func TestKernelShowCountersOfIPVS(t *testing.T) {
	t.Parallel()
	c, connect := servedWeb(t, ipvs.Name)
	code, _, errs := kernlb(t, c.Node.NS, "count", "-backend", "ipvs")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "ipvs counts all the time by itself")
	connect(3)
	counted := regexp.MustCompile(`(?m)^10.96.0.1:80/tcp +default/web:http +3 +\d+ .*
  -> 10.244.1.2:8080 +3 +\d+ +\d+ +\d+ +\d+$`)
	require.Eventually(t, func() bool { // the kernel sums up every two seconds
		code, out, errs := kernlb(t, c.Node.NS, "show", "-counters", "-backend", "ipvs")
		require.Equal(t, exitDone, code, errs)
		return counted.MatchString(out)
	}, time.Minute, 100*time.Millisecond)
}

// servedWeb is a network whose node has the service web, and what connects to it so many times.
func servedWeb(t *testing.T, backend string) (*netnstest.Cluster, func(n int)) {
	t.Helper()
	if backend == ipvs.Name {
		needIPVS(t)
	}
	c := netnstest.Start(t, netnstest.Options{})
	require.NoError(t, c.Pods[1].Serve(netnstest.TCP, 8080))
	code, _, errs := kernlbWith(t, c.Node.NS, serviceManifest("web", "10.96.0.1", "", ""), "apply",
		"-f", "-", "-backend", backend)
	require.Equal(t, exitDone, code, errs)
	return c, func(n int) {
		for range n {
			got := netnstest.Probe{From: c.Pods[0], Proto: netnstest.TCP,
				To: netip.MustParseAddrPort("10.96.0.1:80")}.Send(t.Context())
			require.Equal(t, netnstest.Answered, got.Kind, got)
		}
	}
}
