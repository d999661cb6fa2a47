package adopters

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

const (
	swarmVIP  = "10.96.0.30"
	swarmVIP6 = "fd00:10:96::30"
)

var web = servicemodel.Name{Namespace: "swarm", Name: "web"}

// both are the protocols of a virtual address.
var both = []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP}

// virtualAddress is a service at all ports of its addresses. Tasks get packets at the ports to
// which they were sent.
func virtualAddress(tasks ...servicemodel.Endpoint) servicemodel.State {
	svc := &servicemodel.Service{Name: web, Scheduler: servicemodel.RoundRobin,
		ClusterIPs: []netip.Addr{netip.MustParseAddr(swarmVIP), netip.MustParseAddr(swarmVIP6)},
		Masquerade: servicemodel.MasqueradeAt(servicemodel.MasqueradeNever)}
	for _, p := range both {
		svc.Ports = append(svc.Ports, servicemodel.ServicePort{Name: p.String(), Protocol: p,
			Port: 1, EndPort: 65535})
	}

	return servicemodel.State{}.WithService(svc).WithEndpoints(web, tasks)
}

// taskOf returns the endpoints of a task, one for each family.
func taskOf(h *netnstest.Host, c servicemodel.Condition) (l []servicemodel.Endpoint) {
	for _, addr := range []netip.Addr{h.IPv4, h.IPv6} {
		e := servicemodel.Endpoint{Addr: addr, Condition: c}
		for _, p := range both {
			e.Ports = append(e.Ports, servicemodel.EndpointPort{Name: p.String(), Protocol: p})
		}
		l = append(l, e)
	}

	return l
}

// ready returns the endpoints of tasks that take connections.
func ready(hosts ...*netnstest.Host) (l []servicemodel.Endpoint) {
	for _, h := range hosts {
		l = append(l, taskOf(h, servicemodel.Ready)...)
	}
	return l
}

// sandbox is a network whose first pod is the sandbox of a container. The engine runs in this
// sandbox.
type sandbox struct {
	*netnstest.Cluster
	client *netnstest.Host
	engine *dataplane.Engine
}

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	c := &sandbox{Cluster: netnstest.Start(t, netnstest.Options{Pods: 4, RemotePods: 3})}
	c.client = c.Pods[0]

	// the file of a container's namespace, as a runtime knows it
	ns := netns.Namespace(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.client.NS.Fd()))
	table, err := conntrack.Open(&conntrack.Config{NetNS: ns})
	require.NoError(t, err)
	t.Cleanup(func() { table.Close() })
	keeper, err := flows.New(table, nil)
	require.NoError(t, err)
	c.engine = dataplane.New(opened(t, ns, "swarm"), &dataplane.Config{Flows: keeper})
	return c
}

// at returns the address and port of a virtual address.
func at(vip string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(vip), port).String()
}

func TestSwarmsAddressAnswersAtAllPorts(t *testing.T) {
	t.Parallel()
	c := newSandbox(t)
	tasks := []*netnstest.Host{c.Pods[1], c.Pods[2], c.RemotePods[0]}
	for _, h := range tasks {
		for _, p := range both {
			for _, port := range []uint16{1, 8080, 65535} {
				for _, addr := range []netip.Addr{h.IPv4, h.IPv6} {
					_, err := h.NS.Serve(fmt.Sprint(h.Name, ":", port), p,
						netip.AddrPortFrom(addr, port))
					require.NoError(t, err)
				}
			}
		}
	}

	apply(t, c.engine, virtualAddress(ready(tasks...)...))
	for _, vip := range []string{swarmVIP, swarmVIP6} {
		for _, port := range []uint16{1, 8080, 65535} {
			want := map[string]int{}
			for _, h := range tasks {
				want[fmt.Sprint(h.Name, ":", port)] = 10
			}
			require.Equal(t, want, shares(t, c.client, at(vip, port), 30), "exactly in turn")
			got := send(t, c.client, servicemodel.UDP, at(vip, port))
			require.Contains(t, want, got.Server)
			require.Equal(t, c.client.Addr(got.Source.Addr()), got.Source.Addr())
		}
	}
}

// A task that is drained keeps its connections, and gets no new ones.
func TestSwarmDrainsATask(t *testing.T) {
	t.Parallel()
	for _, vip := range []string{swarmVIP, swarmVIP6} {
		c := newSandbox(t)
		tasks := c.Pods[1:]
		for _, h := range tasks {
			require.NoError(t, h.Serve(servicemodel.TCP, 80))
		}
		apply(t, c.engine, virtualAddress(ready(tasks...)...))
		conns, err := netnstest.OpenConns(t.Context(), c.client,
			netip.MustParseAddrPort(at(vip, 80)), 12)
		require.NoError(t, err)
		require.Equal(t, map[string]int{"pod2": 4, "pod3": 4, "pod4": 4}, conns.Servers())

		drained := append(ready(tasks[1:]...), taskOf(tasks[0], servicemodel.Quiesced)...)
		apply(t, c.engine, virtualAddress(drained...))
		require.Equal(t, map[string]int{"pod3": 5, "pod4": 5}, shares(t, c.client, at(vip, 80), 10))
		require.Zero(t, conns.Ping(time.Minute).Lost())
		apply(t, c.engine, virtualAddress(ready(tasks[1:]...)...))
		require.Zero(t, conns.Ping(time.Minute).Lost())
		conns.Close()
	}
}

// A service is updated one task at a time, while clients connect: a new task is ready, and an old
// one is drained and removed. Every client is answered, and no connection ends before its task.
func TestSwarmsRollingUpdate(t *testing.T) {
	t.Parallel()
	for _, vip := range []string{swarmVIP, swarmVIP6} {
		c := newSandbox(t)
		old, updated := c.Pods[1:], c.RemotePods
		for _, h := range old {
			require.NoError(t, h.Serve(servicemodel.TCP, 80))
		}
		apply(t, c.engine, virtualAddress(ready(old...)...))
		to := netip.MustParseAddrPort(at(vip, 80))
		conns, err := netnstest.OpenConns(t.Context(), c.client, to, 9)
		require.NoError(t, err)

		ctx, stop := context.WithCancel(t.Context())
		complaint := make(chan string, 1)
		go func() {
			defer close(complaint)
			for ctx.Err() == nil {
				p := netnstest.Probe{From: c.client, Proto: servicemodel.TCP, To: to}
				if o := p.Send(t.Context()); o.Kind != netnstest.Answered {
					complaint <- o.String()
					return
				}
			}
		}()

		for i := range old {
			require.NoError(t, updated[i].Serve(servicemodel.TCP, 80))
			now := ready(slices.Concat(old[i+1:], updated[:i+1])...)
			apply(t, c.engine, virtualAddress(
				append(taskOf(old[i], servicemodel.Quiesced), now...)...))
			require.NotContains(t, shares(t, c.client, to.String(), 6), old[i].Name)
			apply(t, c.engine, virtualAddress(now...))
			require.Zero(t, conns.Ping(time.Minute).Lost())
		}

		stop()
		require.Empty(t, <-complaint, "a client beside the update")
		conns.Close()
		require.Equal(t, map[string]int{"remote1": 3, "remote2": 3, "remote3": 3},
			shares(t, c.client, to.String(), 9))
	}
}

// Published ports answer at each address of the host, also at its loopback addresses, and at IPv6.
// Tasks see a given address of the host.
func TestSwarmsIngress(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	tasks := []*netnstest.Host{c.Pods[0], c.RemotePods[0]}
	var l []servicemodel.Endpoint
	for _, h := range tasks {
		require.NoError(t, h.Serve(servicemodel.TCP, 80))
		l = append(l, endpoint(h.IPv4, servicemodel.TCP, 80),
			endpoint(h.IPv6, servicemodel.TCP, 80))
	}

	state := servicemodel.State{}.WithNode(servicemodel.Node{LocalhostNodePorts: true}).
		WithService(&servicemodel.Service{Name: web, Scheduler: servicemodel.RoundRobin,
			Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 8080,
				NodePort: 8080}},
			MasqueradeIPs: []netip.Addr{netip.MustParseAddr(netnstest.Net.NodeSecondaryIPv4),
				netip.MustParseAddr(netnstest.Net.NodeSecondaryIPv6)}}).WithEndpoints(web, l)
	apply(t, dataplane.New(opened(t, c.Node.NS.NetNS(), "swarm"), nil), state)
	for _, way := range []struct {
		from *netnstest.Host
		to   string
	}{
		{c.Outside[0], netnstest.Net.NodeIPv4}, {c.Outside[0], netnstest.Net.NodeIPv6},
		{c.Outside[0], netnstest.Net.NodeUnderlayIPv4},
		{c.Pods[1], netnstest.Net.NodeIPv4}, {c.Pods[1], netnstest.Net.NodeIPv6},
		{c.Node, netnstest.Net.NodeIPv4}, {c.Node, netnstest.Net.NodeIPv6},
		{c.Node, "127.0.0.1"},
	} {
		require.Equal(t, map[string]int{"pod1": 3, "remote1": 3},
			shares(t, way.from, at(way.to, 8080), 6), "%s to %s", way.from.Name, way.to)
		seen := send(t, way.from, servicemodel.TCP, at(way.to, 8080)).Source.Addr().String()
		require.Contains(t, []string{netnstest.Net.NodeSecondaryIPv4,
			netnstest.Net.NodeSecondaryIPv6}, seen, "%s to %s", way.from.Name, way.to)
		send(t, way.from, servicemodel.TCP, at(way.to, 8080)) // the turn of the first again
	}
}
