package main

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/instance"
	"github.com/kernlb/kernlb/servicemodel"
)

// asProgram is set in a process that is the program, not its tests.
const asProgram = "KERNLB_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	keepTracing()
	netnstest.Main(m)
}

// tracing is what keepTracing opened: it would be closed if nothing referred to it.
var tracing *livetrace.Tracer

// keepTracing leaves the kernel's tracing on in a virtual machine made for tests. Whoever is the
// first to trace, or the last, has the kernel rewrite an instruction of nft_do_chain (the static
// key nft_trace_enabled), in whose place there is a breakpoint for a moment. QEMU's emulation of
// several processors sometimes goes on executing the breakpoint that is no longer there, and the
// machine stands still.
func keepTracing() {
	if os.Getenv("KERNLB_VM") == "" {
		return
	}
	var err error
	tracing, err = livetrace.Open(context.Background(), &livetrace.Config{Filter: livetrace.Filter{
		Dst: netip.MustParseAddrPort("192.0.2.1:9"), Protocol: servicemodel.UDP}})
	if err != nil {
		panic(err)
	}
}

// webManifest is a service without endpoints.
const webManifest = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, protocol: TCP}]
`

// kernlb runs a command line in a namespace, with the manifest as standard input, and returns the
// exit code and what was printed.
func kernlb(t *testing.T, ns *netnstest.NS, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return kernlbWith(t, ns, webManifest, args...)
}

// kernlbWith is kernlb with another manifest.
func kernlbWith(t *testing.T, ns *netnstest.NS, manifest string, args ...string) (code int, stdout,
	stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	require.NoError(t, ns.Do(func() error {
		p := &program{stdin: strings.NewReader(manifest), stdout: &out, stderr: &errs}
		code = p.run(context.WithoutCancel(t.Context()), args)
		return nil
	}))
	return code, out.String(), errs.String()
}

func newNS(t *testing.T) *netnstest.NS {
	t.Helper()
	netnstest.Require(t)
	ns, err := netnstest.NewNS("kernlb")
	require.NoError(t, err)
	t.Cleanup(func() { ns.Close() })
	return ns
}

func TestProbePrintsEachBackend(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	code, out, errs := kernlb(t, ns, "probe")
	require.Equal(t, exitDone, code, errs)
	for _, c := range (&options{instance: instance.Default}).candidates() {
		require.Contains(t, out, "\n"+c.Name+" ")
	}
	code, out, errs = kernlb(t, ns, "probe", "-o", "json")
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, out, `"backend": "nftables"`)
}

func TestAutoFindsAgainWhatItChose(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	code, out, errs := kernlb(t, ns, "apply", "-f", "-", "--backend", "auto")
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, out, "nftables: ")
	require.NotContains(t, errs, "warning")
	code, _, errs = kernlb(t, ns, "apply", "-f", "-", "--backend", "iptables")
	require.Equal(t, exitDone, code, errs)
	code, _, errs = kernlb(t, ns, "apply", "-f", "-", "--backend", "auto")
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, errs,
		"the backend iptables holds 1 frontends of the instance kernlb, too: kernlb cleanup "+
			"--backend iptables --instance kernlb removes them")
	code, _, errs = kernlb(t, ns, "cleanup", "--backend", "nftables")
	require.Equal(t, exitDone, code, errs)
	code, out, errs = kernlb(t, ns, "show", "--backend", "auto", "-o", "json")
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, out, `"backend": "iptables"`)
}

// Only IPVS has schedulers. Where the kernel has no IPVS, that is said, and nothing is applied.
func TestKernelAutoTakesIPVSForItsSchedulers(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	leastConn := strings.Replace(webManifest, "{name: web, ",
		`{name: web, annotations: {kernlb.io/scheduler: lc}, `, 1) + `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.2], conditions: {ready: true}}]
`
	code, _, errs := kernlbWith(t, ns, leastConn, "apply", "-f", "-", "--backend", "nftables")
	require.Equal(t, exitInvalid, code, errs)
	require.Contains(t, errs, "scheduler: lc (nftables chooses at random)")

	_, probed, _ := kernlb(t, ns, "probe")
	code, out, errs := kernlbWith(t, ns, leastConn, "apply", "-f", "-", "--backend", "auto")
	if !regexp.MustCompile(`(?m)^ipvs +yes`).MatchString(probed) {
		require.NotEqual(t, exitDone, code, out)
		require.Contains(t, errs, "ipvs")
		_, out, _ = kernlb(t, ns, "show")
		require.NotContains(t, out, "web")
		return
	}
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, out, "ipvs: ")
	code, out, errs = kernlb(t, ns, "show", "--backend", "auto")
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, out, "10.96.0.10:80/tcp")
}

func TestCleanupWantsToBeToldWhat(t *testing.T) {
	t.Parallel()
	code, _, errs := kernlb(t, newNS(t), "cleanup", "--backend", "auto")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "cleanup needs the -backend to clean up")
}
