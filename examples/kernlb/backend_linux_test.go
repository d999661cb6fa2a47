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

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// asProgram is set in a process that is the program and not its tests.
const asProgram = "KERNLB_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	keepTracing()
	netnstest.Main(m)
}

// tracing keeps the result of keepTracing referenced. Otherwise it would be closed.
var tracing *livetrace.Tracer

// keepTracing leaves the kernel's tracing on in a virtual machine made for tests. The first and the
// last tracer make the kernel rewrite an instruction of nft_do_chain (the static key
// nft_trace_enabled), and for a moment a breakpoint is in its place. QEMU's emulation of several
// processors sometimes goes on executing the removed breakpoint, and the machine stops.
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

// kernlb runs a command line and further arguments in a namespace, with a manifest as standard
// input. It requires the exit code, and returns the output.
func kernlb(t *testing.T, ns *netnstest.NS, manifest string, want int, line string,
	args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	require.NoError(t, ns.Do(func() error {
		p := &program{stdin: strings.NewReader(manifest), stdout: &out, stderr: &errs}
		code := p.run(context.WithoutCancel(t.Context()), append(strings.Fields(line), args...))
		require.Equal(t, want, code, "%s: %s", line, &errs)
		return nil
	}))

	return out.String(), errs.String()
}

// done is kernlb for a command that must succeed. It returns the standard output.
func done(t *testing.T, ns *netnstest.NS, manifest, line string, args ...string) string {
	t.Helper()
	out, _ := kernlb(t, ns, manifest, exitDone, line, args...)
	return out
}

// fails is kernlb for a command that must fail with an exit code, and say why.
func fails(t *testing.T, ns *netnstest.NS, manifest string, want int, says, line string,
	args ...string) {
	t.Helper()
	_, errs := kernlb(t, ns, manifest, want, line, args...)
	require.Contains(t, errs, says)
}

func TestProbePrintsEachBackend(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	out := done(t, ns, "", "probe")
	for _, c := range (&options{instance: instance.Default}).candidates() {
		require.Contains(t, out, "\n"+c.Name+" ")
	}
	require.Contains(t, done(t, ns, "", "probe -o json"), `"backend": "nftables"`)
}

func TestAutoFindsAgainWhatItChose(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	out, errs := kernlb(t, ns, webManifest, exitDone, "apply -f - --backend auto")
	require.Contains(t, out, "nftables: ")
	require.NotContains(t, errs, "warning")
	done(t, ns, webManifest, "apply -f - --backend iptables")
	_, errs = kernlb(t, ns, webManifest, exitDone, "apply -f - --backend auto")
	require.Contains(t, errs,
		"the backend iptables holds 1 frontends of the instance kernlb, too: kernlb cleanup "+
			"-backend iptables -instance kernlb removes them")
	done(t, ns, "", "cleanup --backend nftables")
	require.Contains(t, done(t, ns, "", "show --backend auto -o json"), `"backend": "iptables"`)
}

// Only IPVS has schedulers. If the kernel has no IPVS, the program says so and applies nothing.
func TestKernelAutoTakesIPVSForItsSchedulers(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	leastConn := refusedOne("web", "10.96.0.10")
	fails(t, ns, leastConn, exitInvalid,
		"scheduler: sed (nftables has random, rr, wrr, sh, mh, lc and wlc, and ipvs the others)",
		"apply -f - --backend nftables")

	probed := done(t, ns, "", "probe")
	if !regexp.MustCompile(`(?m)^ipvs +yes`).MatchString(probed) {
		fails(t, ns, leastConn, exitInvalid, "ipvs", "apply -f - --backend auto")
		require.NotContains(t, done(t, ns, "", "show"), "web")
		return
	}

	out, errs := kernlb(t, ns, leastConn, exitDone, "apply -f - --backend auto")
	require.Contains(t, out, "ipvs: ")
	require.Contains(t, errs, "the backend is ipvs, not nftables: nftables cannot express service "+
		"default/web:http: scheduler: sed")
	require.Contains(t, done(t, ns, "", "show --backend auto"), "10.96.0.10:80/tcp")
	fails(t, ns, "", exitInvalid, "ipvs counts all the time by itself", "count --backend auto")
}

var (
	onNftables = dataplanetest.Backend{Open: func(ns netns.Namespace) (backends.Backend, error) {
		return nftables.New(&nftables.Config{NetNS: ns})
	}}
	onIPTables = dataplanetest.Backend{Open: func(ns netns.Namespace) (backends.Backend, error) {
		return iptables.New(&iptables.Config{NetNS: ns})
	}}
	onIPVS = dataplanetest.Backend{Require: needIPVS, OwnConnections: true,
		Open: func(ns netns.Namespace) (backends.Backend, error) {
			return ipvs.New(&ipvs.Config{NetNS: ns})
		}}
)

func needIPVS(t *testing.T) {
	t.Helper()
	if err := ipvs.Candidate(nil).Probe(t.Context()); err != nil {
		t.Skipf("ipvs is not supported: %v", err)
	}
}

// No packet is lost while an engine changes its backend.
func TestSwitchOfBackends(t *testing.T) {
	t.Parallel()
	dataplanetest.Switched(t, onNftables, onIPTables)
}

func TestConformanceOfSwitchesToIPVS(t *testing.T) {
	t.Parallel()
	t.Run("nftables", func(t *testing.T) { dataplanetest.Switched(t, onNftables, onIPVS) })
	t.Run("iptables", func(t *testing.T) { dataplanetest.Switched(t, onIPTables, onIPVS) })
}
