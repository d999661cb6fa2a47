package docs_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// task is the network for a section of tasks.md: two pods that serve port 8080, and a backend in
// the node. The document contains the functions below.
type task struct {
	*netnstest.Cluster
	backend backends.Backend
}

func newTask(t *testing.T) *task {
	t.Helper()
	c := &task{Cluster: netnstest.Start(t, netnstest.Options{Pods: 2})}
	for _, p := range c.Pods {
		require.NoError(t, p.Serve(servicemodel.TCP, 8080))
	}
	backend, err := nftables.New(&nftables.Config{NetNS: c.Node.NS.NetNS()})
	require.NoError(t, err)
	t.Cleanup(func() { backend.Close() })
	c.backend = backend
	return c
}

// ask connects from outside, and returns the outcome.
func (c *task) ask(t *testing.T, to string) netnstest.Outcome {
	t.Helper()
	return netnstest.Probe{From: c.Outside[0], Proto: servicemodel.TCP,
		To: netip.MustParseAddrPort(to)}.Send(t.Context())
}

func publish(ctx context.Context, backend backends.Backend, owner string, pod netip.Addr) error {
	name := servicemodel.Name{Namespace: owner, Name: "ports"}
	state := servicemodel.State{}.
		WithService(&servicemodel.Service{
			Name: name,
			Ports: []servicemodel.ServicePort{
				{Protocol: servicemodel.TCP, Port: 8000, NodePort: 8000}},
			Masquerade: servicemodel.MasqueradeAt(servicemodel.MasqueradeNever),
		}).
		WithEndpoints(name, []servicemodel.Endpoint{{
			Addr:  pod,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}},
		}})
	parts := dataplane.NewParts(backend, nil)
	_, err := parts.Apply(ctx, owner, state)
	return err
}

func unpublish(ctx context.Context, backend backends.Backend, owner string) error {
	parts := dataplane.NewParts(backend, nil)
	_, err := parts.Remove(ctx, owner)
	return err
}

func TestTaskPublishAPort(t *testing.T) {
	t.Parallel()
	c := newTask(t)
	require.NoError(t, publish(t.Context(), c.backend, "web-1", c.Pods[0].IPv4))
	got := c.ask(t, netnstest.Net.NodeIPv4+":8000")
	require.Equal(t, "pod1", got.Server, got)
	require.Equal(t, c.Outside[0].IPv4, got.Source.Addr())

	require.NoError(t, unpublish(t.Context(), c.backend, "web-1"))
	require.Equal(t, netnstest.Refused, c.ask(t, netnstest.Net.NodeIPv4+":8000").Kind)
}

func balance(ctx context.Context, backend backends.Backend, asks *checks.Config,
	servers []netip.Addr) error {
	name := servicemodel.Name{Namespace: "balancer", Name: "web"}
	service := &servicemodel.Service{
		Name:            name,
		Ports:           []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
		LoadBalancerIPs: []servicemodel.LoadBalancerIP{{Addr: netip.MustParseAddr("203.0.113.1")}},
	}
	var endpoints []servicemodel.Endpoint
	for _, addr := range servers {
		endpoints = append(endpoints, servicemodel.Endpoint{Addr: addr,
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}

	state := servicemodel.State{}.WithService(service).WithEndpoints(name, endpoints)

	engine := dataplane.New(backend, nil)
	follower, err := checks.NewFollower(func(s servicemodel.State) { engine.Set(s) }, asks)
	if err != nil {
		return err
	}
	held, err := engine.Observe(ctx)
	if err != nil {
		return err
	}
	err = follower.Set(state, map[servicemodel.Name][]checks.Check{
		name: {{Type: checks.TCP, Interval: time.Second}}}, held.Table)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait() // the caller closes the backend
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { engine.Run(ctx, nil) })
	return follower.Run(ctx)
}

func TestTaskBalanceAnAddress(t *testing.T) {
	t.Parallel()
	c := newTask(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	dead := c.RemotePods[0].IPv4 // nothing listens there
	go func() {
		ended <- balance(ctx, c.backend, &checks.Config{NetNS: c.Node.NS.NetNS()},
			[]netip.Addr{c.Pods[0].IPv4, dead, c.Pods[1].IPv4})
	}()

	seen := map[string]bool{}
	require.Eventually(t, func() bool {
		seen[c.ask(t, "203.0.113.1:80").Server] = true
		return seen["pod1"] && seen["pod2"]
	}, time.Minute, time.Millisecond)

	for range 20 {
		got := c.ask(t, "203.0.113.1:80")
		require.Equal(t, netnstest.Answered, got.Kind, got)
	}

	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func proxy(ctx context.Context, backend backends.Backend, node string,
	services []*corev1.Service, slices []*discoveryv1.EndpointSlice) error {
	tracker := kube.NewTracker(&kube.Config{Node: servicemodel.Node{Name: node}})
	for _, s := range services {
		tracker.SetService(s)
	}
	for _, s := range slices {
		tracker.SetEndpointSlice(s)
	}
	_, err := dataplane.New(backend, nil).Apply(ctx, tracker.State())
	return err
}

func TestTaskReplaceKubeProxy(t *testing.T) {
	t.Parallel()
	c := newTask(t)
	name, port, tcp, yes := "http", int32(8080), corev1.ProtocolTCP, true
	require.NoError(t, proxy(t.Context(), c.backend, "node-a", []*corev1.Service{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: name, Port: 80, Protocol: tcp}}},
	}}, []*discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{c.Pods[1].IPv4.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
	}}))
	got := c.ask(t, "10.96.0.10:80")
	require.Equal(t, "pod2", got.Server, got)
}
