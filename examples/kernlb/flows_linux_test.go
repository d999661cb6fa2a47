package main

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// dnsManifest returns a service with endpoints at the addresses.
func dnsManifest(endpoints ...string) string {
	s := `
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: default}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: dns, port: 53, protocol: UDP}, {name: web, port: 80, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns, namespace: default, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{name: dns, port: 5353, protocol: UDP}, {name: web, port: 8080, protocol: TCP}]
endpoints:
`
	for _, e := range endpoints {
		s += fmt.Sprintf("- {addresses: [%s], conditions: {ready: true}}\n", e)
	}
	return s
}

// put adds a flow to the service, answered by the endpoint.
func put(t *testing.T, ns *netnstest.NS, p conntrack.Protocol, port uint16, endpoint string) {
	t.Helper()
	table := ok(conntrack.Open(&conntrack.Config{NetNS: ns.NetNS()}))(t)
	defer table.Close()
	client := netip.MustParseAddrPort("198.51.100.1:4000")
	f := conntrack.Flow{Protocol: p, Timeout: time.Minute,
		Original: conntrack.Tuple{Src: client,
			Dst: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.10"), port)},
		Reply: conntrack.Tuple{Src: netip.MustParseAddrPort(endpoint), Dst: client}}
	if p == conntrack.TCP {
		f.TCP = conntrack.TCPEstablished
	}
	c := ok(table.Create(t.Context(), conntrack.All(f)))(t)
	require.Equal(t, 1, c)
}

// Two programs run one after the other. The second finds everything that it needs in the kernel.
func TestApplyTwiceCleansUp(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			done(t, ns, dnsManifest("10.244.0.1", "10.244.0.2"), "apply -f - -backend", backend)
			put(t, ns, conntrack.UDP, 53, "10.244.0.1:5353")
			put(t, ns, conntrack.TCP, 80, "10.244.0.1:8080")
			out := done(t, ns, "", "flows -backend", backend)
			require.Regexp(t,
				`default/dns:dns +udp +198\.51\.100\.1:4000 +10\.96\.0\.10:53 +10\.244\.0\.1:5353 `+
					`+UNREPLIED +`, out)
			require.Contains(t, out, "ESTABLISHED")
			require.Regexp(t, `\ntable: 2 of \d+ flows \(0\.0 %\), 0 packets dropped`, out)

			after := dnsManifest("10.244.0.2", "10.244.0.3")
			require.NotContains(t, done(t, ns, after, "apply -f - -backend", backend,
				"-keep-flows"), "stale")
			out = done(t, ns, after, "apply -f - -backend "+backend+" -o json")
			require.Contains(t, out, `"flows_deleted": 1`)
			out = done(t, ns, "", "flows -backend "+backend+" -o json")
			require.NotContains(t, out, "udp")
			require.Contains(t, out,
				`"endpoint":"10.244.0.1:8080","former_endpoint":true,"state":"ESTABLISHED"`)

			start := time.Now()
			drain := "apply -f - -connections 2s -backend " + backend
			out, errs := kernlb(t, ns, after, exitDone, drain)
			require.Contains(t, errs, "draining for 2s")
			require.Contains(t, out, "stale flows deleted: 1;")
			require.GreaterOrEqual(t, time.Since(start), 2*time.Second)
			_, errs = kernlb(t, ns, after, exitDone, drain)
			require.Empty(t, errs, "nothing is left to be drained, so nothing is waited for")
			done(t, ns, "", "flows -service default/dns -backend", backend)
			fails(t, ns, "", exitFailed, `kernlb flows: there is no service "default/dnx"; did `+
				"you mean default/dns?\n", "flows -service default/dnx -backend", backend)
		})
	}
}

func TestWatchPrintsWhatHappens(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	done(t, ns, dnsManifest("10.244.0.1"), "apply -f -")
	w := &watched{t: t, ns: ns, args: []string{"flows", "-watch"}}
	w.start()
	followed := regexp.MustCompile(`(?m)^\S+ +12 +\d+ +0*[1-9a-f]`) // a netfilter socket in a group
	require.Eventually(t, func() bool {
		return followed.Match(ok(os.ReadFile(fmt.Sprintf("/proc/%d/net/netlink",
			w.process.Process.Pid)))(t))
	}, time.Minute, 10*time.Millisecond)
	put(t, ns, conntrack.UDP, 53, "10.244.0.1:5353")
	w.logs("default/dns:dns")
	w.halt()
	require.Regexp(t,
		`new +default/dns:dns +udp +198\.51\.100\.1:4000 +10\.96\.0\.10:53 +10\.244\.0\.1:5353`,
		w.log.String())
}

func TestTunePlansWithKubeProxysDefaults(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	require.Contains(t, done(t, ns, "", "tune -plan"),
		"nf_conntrack_tcp_timeout_established: 432000 -> 86400")
	out := done(t, ns, "", "tune -plan -conntrack-max-per-core 0 "+
		"-conntrack-tcp-timeout-established 0 -conntrack-tcp-timeout-close-wait 0 "+
		"-conntrack-udp-timeout 20s -o json -lower")
	require.Contains(t, out, `"name": "nf_conntrack_udp_timeout"`)
	require.NotContains(t, out, "established")
	fails(t, ns, "", exitInvalid, "Min: -1 is negative", "tune -plan -conntrack-min -1")
}
