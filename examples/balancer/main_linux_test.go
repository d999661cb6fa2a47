package main

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// asProgram is an environment variable. If it is set, the test binary is the program, and the value
// is its configuration.
const asProgram = "BALANCER_CONFIG"

func TestMain(m *testing.M) {
	if path := os.Getenv(asProgram); path != "" {
		os.Args = []string{"balancer", "-config", path, "-interval", "20ms"}
		main()
		return
	}
	netnstest.Main(m)
}

// launch runs the program in a namespace. log is the name of a file with its output.
func launch(t *testing.T, ns *netnstest.NS, text string) (program *exec.Cmd, log string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "balancer.json")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	out, err := os.CreateTemp(t.TempDir(), "log")
	require.NoError(t, err)
	defer out.Close()
	program = exec.Command("/proc/self/exe")
	program.Env = append(os.Environ(), asProgram+"="+path)
	program.Stderr = out
	require.NoError(t, ns.Do(program.Start))
	t.Cleanup(func() {
		_ = program.Process.Kill()
		if text, err := os.ReadFile(out.Name()); t.Failed() {
			t.Logf("%s %v", text, err)
		}
	})
	return program, out.Name()
}

// servers returns the servers that answer a client outside.
func servers(t *testing.T, c *netnstest.Cluster) map[string]bool {
	t.Helper()
	probes := make([]netnstest.Probe, 20)
	for i := range probes {
		probes[i] = netnstest.Probe{From: c.Outside[0], Proto: servicemodel.TCP,
			To: netip.MustParseAddrPort("203.0.113.10:80")}
	}
	out := map[string]bool{}
	for _, o := range netnstest.SendAll(t.Context(), probes) {
		out[string(o.Kind)+" "+o.Server] = true
	}
	return out
}

func TestBackendsThatFailAreLeftOut(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	serve := func(pod *netnstest.Host) *netnstest.Server {
		s, err := pod.NS.Serve(pod.Name, servicemodel.TCP, netip.AddrPortFrom(pod.IPv4, 8080))
		require.NoError(t, err)
		return s
	}
	serve(c.Pods[0])
	second := serve(c.Pods[1])
	program, log := launch(t, c.Node.NS, strings.TrimSuffix(someConfig, "]}")+`, {"name": "idle",
		"address": "203.0.113.11:80", "backends": [{"address": "10.244.1.1:7"}]}]}`)
	answer := func(want ...string) {
		t.Helper()
		all := map[string]bool{}
		for _, w := range want {
			all[w] = true
		}
		require.Eventually(t, func() bool {
			got := servers(t, c)
			return len(got) == len(all) && got[want[0]] && got[want[len(want)-1]]
		}, time.Minute, 20*time.Millisecond)
	}
	answer("answered pod1", "answered pod2")
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(text), "state warning service=balancer/idle ")
	}, time.Minute, 20*time.Millisecond)
	require.NoError(t, second.Close())
	answer("answered pod1")
	second = serve(c.Pods[1])
	answer("answered pod1", "answered pod2")

	// Without the program the kernel continues, and a new process adopts its contents.
	require.NoError(t, program.Process.Kill())
	_ = program.Wait()
	require.Equal(t, map[string]bool{"answered pod1": true, "answered pod2": true}, servers(t, c))
	launch(t, c.Node.NS, someConfig)
	require.NoError(t, second.Close())
	answer("answered pod1")
}
