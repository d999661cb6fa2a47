package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestShowSome(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	db := strings.ReplaceAll(serviceManifest("db", "10.96.0.2", "", ""), "namespace: default",
		"namespace: prod")
	manifest := serviceManifest("web", "10.96.0.1", "", "") + strings.NewReplacer("10.244.1.2",
		"10.244.1.3", "8080", "5432").Replace(db)
	done(t, ns, manifest, "apply -f -")
	for flags, want := range map[string]string{
		"": "web db", "-namespace prod": "db", "-service default/web": "web",
		"-service prod/web":  "",
		"-address 10.96.0.1": "web", "-address 10.244.1.3": "db",
		"-port 80": "web db", "-port 5432": "db", "-port 5432 -address 10.96.0.1": "",
	} {
		for _, output := range []string{"text", "json"} {
			out := done(t, ns, "", "show -o "+output+" "+flags)
			for name, ip := range map[string]string{"web": "10.96.0.1", "db": "10.96.0.2"} {
				require.Equal(t, strings.Contains(want, name), strings.Contains(out, ip), "%s: %s",
					flags, out)
			}
		}
	}
}

func TestShowDiff(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	file := filepath.Join(t.TempDir(), "web.yaml")
	web := serviceManifest("web", "10.96.0.1", "", "")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	diff := func(want int, args ...string) string {
		out, _ := kernlb(t, ns, "", want, "show -diff -f "+file, args...)
		return out
	}
	write(web + serviceManifest("old", "10.96.0.2", "", ""))
	done(t, ns, "", "apply -f", file)
	head := "--- kernel (nftables)\n+++ manifests (" + file + ")\n"
	require.Equal(t, head, diff(exitDone))
	write(strings.Replace(web, "{ready: true}}", "{ready: true}}, {addresses: [10.244.1.3]}", 1) +
		serviceManifest("new", "10.96.0.3", "", ""))
	require.Equal(t, head+`@@ 10.96.0.1:80/tcp default/web:http @@
 10.96.0.1:80/tcp default/web:http cluster-ip -> cluster
   -> 10.244.1.2:8080
+  -> 10.244.1.3:8080
@@ 10.96.0.2:80/tcp default/old:http @@
-10.96.0.2:80/tcp default/old:http cluster-ip -> cluster
-  -> 10.244.1.2:8080
@@ 10.96.0.3:80/tcp default/new:http @@
+10.96.0.3:80/tcp default/new:http cluster-ip -> cluster
+  -> 10.244.1.2:8080
`, diff(exitFailed))
	require.NotContains(t, diff(exitFailed, "-service", "default/web"), "default/new")
	out, errs := kernlb(t, ns, "", exitFailed, "show -diff -f "+file+" -masquerade-bit 15")
	require.Contains(t, errs, "the kernel does not hold what the manifests say")
	require.Contains(t, out, "@@ settings of the node @@\n~ rules: ")
}

// Without -instance, show lists all other instances in the kernel, whatever program made them, with
// the commands that show them. It does not list tables that are not kernlb's.
func TestShowListsInstances(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	nstest.NFT(t, ns, "table ip corp { chain c {\ntype nat hook prerouting priority 0; }\n}")
	require.NotContains(t, done(t, ns, "", "show"), "instances")
	for i, args := range []string{"-instance kernlb-cni", "-instance mine",
		"-instance loadbalancer -backend iptables"} {
		done(t, ns, serviceManifest(fmt.Sprint("web", i), "10.96.0.1", "",
			""), "apply -f - "+args)
		out := done(t, ns, "", "show "+args)
		require.Contains(t, out, fmt.Sprint("default/web", i))
		require.NotContains(t, out, "Other instances")
	}
	out := done(t, ns, "", "show")
	require.Contains(t, out, "\nOther instances are in the kernel:\n"+
		"INSTANCE      BACKEND   FRONTENDS  OF                 COMMAND\n"+
		"kernlb-cni    nftables  1          the CNI plugin     kernlb show -instance kernlb-cni\n"+
		"loadbalancer  iptables  1          the load balancer  kernlb show -instance loadbalancer "+
		"-backend iptables\n"+
		"mine          nftables  1                             kernlb show -instance mine\n")
	require.Contains(t, done(t, ns, "", "show -o json"), `"instance": "mine"`)
}

// Two endpoints of weights 1 and 3 under each scheduler whose shares are known.
func TestShowSpread(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	slice := `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-b, namespace: default, labels: {kubernetes.io/service-name: web},
  annotations: {kernlb.io/weight: "3"}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.3], conditions: {ready: true}}]
`
	done(t, ns, serviceManifest("web", "10.96.0.1", "annotations: {kernlb.io/scheduler: mh}", "")+
		slice, "apply -f -")
	require.Equal(t, "default/web:http/tcp IPv4 cluster: mh, a table of 1021 entries, imbalance "+
		`0.29 %
ENDPOINT         WEIGHT  IS TO HAVE  HAS      MORE OR LESS
10.244.1.2:8080  1       25.00 %     25.07 %  +0.29 %
10.244.1.3:8080  3       75.00 %     74.93 %  -0.10 %
`, done(t, ns, "", "show -spread"))
	require.Contains(t, done(t, ns, "", "show -spread -o json"), `"entries": 1021`)
	require.Contains(t, done(t, ns, "", "explain default/web"), "imbalance 0.29 %")
	require.Empty(t, done(t, ns, "", "show -spread -service default/db"))
	done(t, ns, serviceManifest("web", "10.96.0.1", "annotations: {kernlb.io/scheduler: rr}", "")+
		slice, "apply -f -")
	require.Contains(t, done(t, ns, "", "show -spread"), "IPv4 cluster: rr, imbalance 0.00 %\n")
}

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
