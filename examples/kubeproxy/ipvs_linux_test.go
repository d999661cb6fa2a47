package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// Mode ipvs from beginning to end with a real API server. The program takes over a kube-proxy's
// virtual servers and connections, is killed, continues, and cleans up.
func TestTheModeIPVSOnAnAPIServer(t *testing.T) {
	if os.Getenv("KERNLB_VM") == "" {
		t.Skip("long: make apiserver-vm runs it in a virtual machine, which has IPVS")
	}
	patience = 3 * time.Minute // the machine is emulated
	p, c := startControlPlane(t), node(t)
	p.reach(c.Node.NS)
	require.NoError(t, c.RemotePods[0].Serve(servicemodel.TCP, 8080))
	app := map[string]string{"app": "web"}
	p.addPod("here", "node1", c.Pods[0], app)
	s := p.addDualStack("web", "web")
	kubeProxy := p.start("kube-proxy", c, "ipvs", bothFamilies...)
	w := watch(t, c, s, c.Pods[1], c.Pods[2])
	t.Logf("kube-proxy alone: %s", w.lap(t))

	ours := p.start("kernlb", c, "ipvs", bothFamilies...)
	p.hasEvent("KubeProxyRuns")
	kubeProxy.end()
	p.hasEvent("TookOver")
	w.lives()
	t.Logf("handed over: %s", w.lap(t))
	p.addPod("there", "node2", c.RemotePods[0], app)
	servesBothFamilies(t, c, s)
	answersHTTPOverBothFamilies(t, c, s, "ipvs")

	for range 3 {
		require.NoError(t, ours.cmd.Process.Kill())
		_ = ours.cmd.Wait()
		ours = p.start("kernlb", c, "ipvs", bothFamilies...)
	}
	answers(t, c.Pods[1], p.addService(serviceOf("last", "web")), "answered pod1")
	w.lives()
	t.Logf("killed three times: %s", w.lap(t))
	w.all(t)
	p.removePod("here")
	hereIsNoEndpoint(t, c, s)
	ours.stop()
	cleanup := spawn(t, c.Node.NS, asProgram+"=1", self, "--cleanup")
	require.NoError(t, cleanup.cmd.Wait())
	require.NotContains(t, ruleset(t, c.Node.NS), "kernlb")
}
