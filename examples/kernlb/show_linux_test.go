package main

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// calls counts writes.
type calls int

func (c *calls) Write(b []byte) (int, error) { *c++; return len(b), nil }

// A table of 10,000 lines takes a system call for each 64 KB, not for each cell.
func TestColumnsAreWrittenInLargeParts(t *testing.T) {
	t.Parallel()
	var n calls
	w, size := newColumns(&n), 0
	for i := range 10000 {
		l, _ := fmt.Fprintf(w, "10.96.%d.%d:80/tcp\tdefault/web\t%d\n", i>>8, i&255, i)
		size += l
	}

	require.NoError(t, w.Flush())
	require.LessOrEqual(t, int(n), size/(32<<10)+2)
}

// An empty selection is not a header without lines.
func TestShowSaysThatThereIsNothing(t *testing.T) {
	t.Parallel()
	c, _ := servedWeb(t, nftables.Name)
	require.Equal(t, "no service that the kernel holds matches -namespace, -service, -address and "+
		"-port\n", done(t, c.Node.NS, "", "show -namespace nope"))
	done(t, c.Node.NS, "", "cleanup")
	require.Equal(t, "the kernel holds no service of this instance\n",
		done(t, c.Node.NS, "", "show"))
}

func TestShowCounters(t *testing.T) {
	t.Parallel()
	c, connect := servedWeb(t, nftables.Name)
	const off = "; kernlb count switches them on"
	fails(t, c.Node.NS, "", exitFailed, off, "show -counters")
	done(t, c.Node.NS, "", "count")
	connect(3)
	out := done(t, c.Node.NS, "", "show -counters")
	require.Regexp(t, `^FRONTEND +SERVICE +CONNECTIONS +PACKETS IN .*
10.96.0.1:80/tcp +default/web:http +3 +\d+ +\d+ +\d+ +\d+
  -> 10.244.1.2:8080 +3 +\d+ +\d+ +\d+ +\d+
$`, out)
	require.Contains(t, done(t, c.Node.NS, "", "show -counters -o json"), `"connections": 3`)
	done(t, c.Node.NS, "", "count -off")
	fails(t, c.Node.NS, "", exitFailed, off, "show -counters")
}

// The values of conntrack include packets if conntrack counts them.
func TestShowConntrack(t *testing.T) {
	t.Parallel()
	c, connect := servedWeb(t, nftables.Name)
	connect(2)
	out, errs := kernlb(t, c.Node.NS, "", exitDone, "show -conntrack")
	require.Regexp(t, `^FRONTEND +SERVICE +CONNECTIONS
10.96.0.1:80/tcp +default/web:http +2
  -> 10.244.1.2:8080 +2
$`, out)
	require.Contains(t, errs, "conntrack counts no packets: sysctl -w")
	require.Contains(t, done(t, c.Node.NS, "", "show -conntrack -o json"),
		`"onlyConnections": true`)
	const acct = "net/netfilter/nf_conntrack_acct"
	require.NoError(t, c.Node.NS.SetSysctl(acct, "1"))
	connect(1)
	out, errs = kernlb(t, c.Node.NS, "", exitDone, "show -conntrack")
	require.Empty(t, errs)
	require.Regexp(t, `(?m)^  -> 10.244.1.2:8080 +3 +\d+ +\d+ +\d+ +\d+$`, out)
}

// IPVS counts by itself; counting cannot be switched on or off.
func TestKernelShowCountersOfIPVS(t *testing.T) {
	t.Parallel()
	c, connect := servedWeb(t, ipvs.Name)
	fails(t, c.Node.NS, "", exitInvalid, "ipvs counts all the time by itself",
		"count -backend ipvs")
	connect(3)
	counted := regexp.MustCompile(`(?m)^10.96.0.1:80/tcp +default/web:http +3 +\d+ .*
  -> 10.244.1.2:8080 +3 +\d+ +\d+ +\d+ +\d+$`)
	require.Eventually(t, func() bool { // the kernel updates its sums every two seconds
		out := done(t, c.Node.NS, "", "show -counters -backend ipvs")
		return counted.MatchString(out)
	}, time.Minute, 100*time.Millisecond)
}

// servedWeb returns a network whose node has the service web, and a function that connects to it n
// times.
func servedWeb(t *testing.T, backend string) (*netnstest.Cluster, func(n int)) {
	t.Helper()
	if backend == ipvs.Name {
		needIPVS(t)
	}
	c := netnstest.Start(t, netnstest.Options{})
	require.NoError(t, c.Pods[1].Serve(servicemodel.TCP, 8080))
	done(t, c.Node.NS, serviceManifest("web", "10.96.0.1", "", ""), "apply -f - -backend", backend)
	return c, func(n int) {
		for range n {
			got := netnstest.Probe{From: c.Pods[0], Proto: servicemodel.TCP,
				To: netip.MustParseAddrPort("10.96.0.1:80")}.Send(t.Context())
			require.Equal(t, netnstest.Answered, got.Kind, got)
		}
	}
}

// apply notices no silent endpoints, because it ends.
func TestApplySaysThatItEjectsNothing(t *testing.T) {
	t.Parallel()
	ns := netnstest.Start(t, netnstest.Options{}).Node.NS
	for policy, warns := range map[string]bool{"eject": true, "stay": false} {
		_, errs := kernlb(t, ns, serviceManifest("a", "10.96.0.1",
			"annotations: {kernlb.io/silent-endpoints: "+policy+"}", ""), exitDone, "apply -f -")
		require.Equal(t, warns, strings.Contains(errs,
			"warning: silent-endpoints: eject has no effect on 1 service: apply ends now"), errs)
	}
}
