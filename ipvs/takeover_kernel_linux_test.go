package ipvs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/ipvs"
)

// Connections through a virtual server of kube-proxy go on when the service takes it over, when
// kube-proxy's other objects are cleaned up, and when the service gets other endpoints.
func TestKernelConnectionsGoOnWhenKubeProxyIsReplaced(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{TakeOver: true})
	for _, name := range []string{"net/ipv4/vs/conntrack", "net/ipv4/ip_forward"} {
		require.NoError(t, k.Node.NS.SetSysctl(name, "1"))
	}
	k.run("ip", "link", "add", "kube-ipvs0", "type", "dummy")
	k.run("ip", "address", "add", webKey.Addr.String()+"/32", "dev", "kube-ipvs0")
	var theirs ipvsnl.Batch
	theirs.NewService(ipvsnl.Service{ServiceKey: webKey, Scheduler: "rr"})
	for _, pod := range []string{"pod2", "pod3"} {
		theirs.NewDestination(webKey, ipvsnl.Destination{DestinationKey: ipvsnl.DestinationKey{
			Addr: k.pods[pod].IPv4, Port: 8080}, Weight: 1})
	}
	require.NoError(t, k.vs.Submit(t.Context(), &theirs))
	conns := k.hold()
	defer conns.Close()
	requireAlive(t, conns)

	k.engine = dataplane.New(k.backend, &dataplane.Config{Strict: true})
	k.apply(k.state(web(), "pod2", "pod3"))
	requireAlive(t, conns)
	plan := ok(kubeproxy.Cleanup(t.Context(), &kubeproxy.Config{NetNS: k.Node.NS.Fd()}))(t)
	require.Equal(t, "kube-ipvs0", plan.Device)
	require.Empty(t, plan.VirtualServers)
	requireAlive(t, conns)
	more := k.hold()
	defer more.Close()
	k.apply(k.state(web(), "pod3")) // pod2 drains
	requireAlive(t, conns)
	requireAlive(t, more)
}
