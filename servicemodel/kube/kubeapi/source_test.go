package kubeapi

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

var web = servicemodel.Name{Namespace: "default", Name: "web"}

var someAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}

func service(name, ip string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}}}
}

func slice(service string, addresses ...string) *discoveryv1.EndpointSlice {
	name, port, protocol, ready := "", int32(8080), corev1.ProtocolTCP, true
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}

	return s
}

func node(addresses, cidrs []string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}

	return n
}

// server returns an API server in memory, which has ServiceCIDRs.
func server(objects ...runtime.Object) *fake.Clientset {
	c := fake.NewClientset(objects...)
	c.Discovery().(*fakediscovery.FakeDiscovery).Resources = []*metav1.APIResourceList{{
		GroupVersion: networkingv1.SchemeGroupVersion.String(),
		APIResources: []metav1.APIResource{{Name: "servicecidrs"}},
	}}
	return c
}

// following is a running source with the states that it produced.
type following struct {
	*Source
	mu     sync.Mutex
	states []servicemodel.State
	done   chan error
	stop   context.CancelFunc
}

func follow(t *testing.T, client *fake.Clientset, cfg *Config) *following {
	t.Helper()
	source := must.OK(New(client, cfg))(t)
	ctx, stop := context.WithCancel(t.Context())
	f := &following{Source: source, done: make(chan error, 1), stop: stop}
	go func() {
		f.done <- source.Run(ctx, func(s servicemodel.State) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.states = append(f.states, s)
		})
	}()

	return f
}

// end stops the source and requires that it has not failed.
func (f *following) end(t *testing.T) {
	t.Helper()
	f.stop()
	require.NoError(t, <-f.done)
}

// made returns the number of states so far, and the last state.
func (f *following) made() (int, servicemodel.State) {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.states) == 0 {
		return 0, servicemodel.State{}
	}
	return len(f.states), f.states[len(f.states)-1]
}

func (f *following) requireEndpoints(t *testing.T, n servicemodel.Name, want int) {
	t.Helper()
	states, s := f.made()
	require.NotZero(t, states)
	require.Len(t, s.Endpoints(n), want, "%v", f.Problems())
}

func TestNothingComesBeforeEverythingWasListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := server(service("web", "10.96.0.10"), slice("web", "10.244.1.1", "10.244.1.2"))
		fail := func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no leader")
		}
		client.PrependReactor("list", "endpointslices", fail)
		f := follow(t, client, nil)
		time.Sleep(time.Minute)
		states, _ := f.made()
		require.Zero(t, states)
		st := f.Status()
		require.False(t, st.Synced)
		require.True(t, st.Kinds[0].Listed)
		require.False(t, st.Kinds[1].Listed)
		require.ErrorContains(t, st.Kinds[1].Err, "list and watch EndpointSlice: ")
		require.ErrorContains(t, st.Kinds[1].Err, "no leader")

		client.Fake.Lock()
		client.ReactionChain = client.ReactionChain[1:]
		client.Fake.Unlock()
		time.Sleep(2 * time.Minute)
		states, s := f.made()
		require.Equal(t, 1, states)
		require.NotNil(t, s.Service(web))
		require.Len(t, s.Endpoints(web), 2)
		for _, k := range f.Status().Kinds {
			require.NoError(t, k.Err, k.Kind)
			require.Zero(t, k.Since)
		}

		f.end(t)
	})
}

func TestObjectsAreFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := server(service("web", "10.96.0.10"))
		f := follow(t, client, nil)
		f.requireEndpoints(t, web, 0)
		services := client.CoreV1().Services("default")
		eps := client.DiscoveryV1().EndpointSlices("default")

		must.OK(eps.Create(t.Context(), slice("web", "10.244.1.1"), metav1.CreateOptions{}))(t)
		f.requireEndpoints(t, web, 1)
		must.OK(eps.Update(t.Context(), slice("web", "10.244.1.1", "10.244.1.2"),
			metav1.UpdateOptions{}))(t)
		f.requireEndpoints(t, web, 2)
		require.NoError(t, eps.Delete(t.Context(), "web-1", metav1.DeleteOptions{}))
		f.requireEndpoints(t, web, 0)

		cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}}
		must.OK(client.NetworkingV1().ServiceCIDRs().Create(t.Context(), cidr,
			metav1.CreateOptions{}))(t)
		_, s := f.made()
		require.Len(t, s.Node().ServiceCIDRs, 1)

		require.NoError(t, services.Delete(t.Context(), "web", metav1.DeleteOptions{}))
		_, s = f.made()
		require.Nil(t, s.Service(web))
		f.end(t)
	})
}

func TestADeletionThatTheWatchMissedIsNoticed(t *testing.T) {
	t.Parallel()
	s := must.OK(New(server(), nil))(t)
	for _, k := range s.kinds[:1] {
		s.set(k, service("web", "10.96.0.10"))
		require.NotNil(t, s.State().Service(web))
		s.remove(k, cache.DeletedFinalStateUnknown{Key: "default/web"})
		require.Nil(t, s.State().Service(web))
	}
}

func TestABrokenWatchKeepsWhatIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := server(service("web", "10.96.0.10"), slice("web", "10.244.1.1"))
		var mu sync.Mutex
		var watches []*watch.FakeWatcher
		var refusal error
		client.PrependWatchReactor("endpointslices",
			func(clienttesting.Action) (bool, watch.Interface, error) {
				mu.Lock()
				defer mu.Unlock()
				if refusal != nil {
					return true, nil, refusal
				}
				w := watch.NewFake()
				watches = append(watches, w)
				return true, w, nil
			})

		f := follow(t, client, nil)
		f.requireEndpoints(t, web, 1)

		mu.Lock()
		refusal = apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "", nil)
		watches[0].Stop()
		mu.Unlock()
		time.Sleep(5 * time.Minute)
		f.requireEndpoints(t, web, 1)
		st := f.Status()
		require.True(t, st.Synced)
		require.True(t, apierrors.IsForbidden(st.Kinds[1].Err), "%v", st.Kinds[1].Err)

		// The list before the next watch reveals the objects that were deleted in between.
		require.NoError(t, client.Tracker().Delete(
			discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), "default", "web-1"))
		mu.Lock()
		refusal = nil
		mu.Unlock()
		time.Sleep(5 * time.Minute)
		f.requireEndpoints(t, web, 0)
		require.NoError(t, f.Status().Kinds[1].Err)
		f.end(t)
	})
}

func TestTheSelectorsAreThoseOfKubeProxy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := server(node([]string{"192.0.2.1"}, nil))
		f := follow(t, client, &Config{Tracker: kube.Config{Node: servicemodel.Node{Name: "n1"}}})
		f.made()
		f.end(t)
		got := map[string][2]string{}
		for _, a := range client.Actions() {
			if l, ok := a.(clienttesting.ListAction); ok {
				r := l.GetListRestrictions()
				got[l.GetResource().Resource] = [2]string{r.Labels.String(), r.Fields.String()}
			}
		}

		require.Equal(t, map[string][2]string{
			"services":       {"!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None"},
			"endpointslices": {"!service.kubernetes.io/headless", ""},
			"nodes":          {"", "metadata.name=n1"},
			"servicecidrs":   {"", ""},
		}, got)
	})
}

// An account without permission to list ServiceCIDRs gets states without ServiceCIDRs, until it
// gets the permission.
func TestStatesComeWithoutServiceCIDRs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := server(service("web", "10.96.0.10"), slice("web", "10.244.1.1"),
			&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
				Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}})
		var allowed atomic.Bool
		client.PrependReactor("list", "servicecidrs",
			func(clienttesting.Action) (bool, runtime.Object, error) {
				return !allowed.Load(), nil,
					apierrors.NewForbidden(networkingv1.Resource("servicecidrs"), "", nil)
			})

		var log strings.Builder
		f := follow(t, client, &Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		time.Sleep(optionalTimeout + time.Second)
		f.requireEndpoints(t, web, 1)
		require.True(t, f.Status().Synced)
		require.True(t, apierrors.IsForbidden(f.Status().Kinds[2].Err))
		allowed.Store(true)
		time.Sleep(time.Hour)
		_, s := f.made()
		require.Len(t, s.Node().ServiceCIDRs, 1)
		f.end(t)
		require.Contains(t, log.String(), "goes on without ServiceCIDRs")
	})
}

func TestServiceCIDRsAreWatchedWhereTheServerHasThem(t *testing.T) {
	t.Parallel()
	s := must.OK(New(fake.NewClientset(), nil))(t)
	names := func(l []*kind) (out []string) {
		for _, k := range l {
			out = append(out, k.name)
		}
		return out
	}

	require.Equal(t, []string{"Service", "EndpointSlice"}, names(s.kinds))

	client := server()
	client.PrependReactor("get", "resource",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("not reachable")
		})

	_, err := New(client, nil)
	require.ErrorContains(t, err, "kubeapi: ask for networking.k8s.io/v1: not reachable")
	_, err = New(nil, nil)
	require.ErrorContains(t, err, "client")
}

func TestTheNodeIsWaitedFor(t *testing.T) {
	t.Parallel()
	named := servicemodel.Node{Name: "n1"}
	for name, test := range map[string]struct {
		cfg    kube.Config
		before *corev1.Node // the first object of the server
		after  time.Duration
		err    error
	}{
		"has addresses": {kube.Config{Node: named}, node([]string{"192.0.2.1"}, nil), 0, nil},
		"has none":      {kube.Config{Node: named}, node(nil, nil), 30 * time.Second, nil},
		"no such node":  {kube.Config{Node: named}, nil, 30 * time.Second, nil},
		"not needed": {kube.Config{Node: servicemodel.Node{Name: "n1",
			Addresses: slices.Clone(someAddresses)}}, nil, 0, nil},
		"no CIDRs": {kube.Config{Node: named, NodeCIDRs: true},
			node([]string{"192.0.2.1"}, nil), 5 * time.Minute, ErrNoNode},
		"has CIDRs": {kube.Config{Node: named, NodeCIDRs: true},
			node([]string{"192.0.2.1"}, []string{"10.244.1.0/24"}), 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := server()
				if test.before != nil {
					client = server(test.before)
				}
				var log strings.Builder
				f := follow(t, client, &Config{Tracker: test.cfg,
					Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if test.after > 0 {
					time.Sleep(test.after - time.Second)
					n, _ := f.made()
					require.Zero(t, n)
					time.Sleep(2 * time.Second)
				}

				n, _ := f.made()
				if test.err != nil {
					require.Zero(t, n)
					require.ErrorIs(t, <-f.done, test.err)
					f.stop()
				} else {
					require.Equal(t, 1, n)
					f.end(t)
				}

				require.Equal(t, test.after > 0,
					strings.Contains(log.String(), "the first state waits for the node"), &log)
			})
		})
	}
}

func TestANodeThatComesLateOpensTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := server()
		f := follow(t, client, &Config{Tracker: kube.Config{
			Node: servicemodel.Node{Name: "n1"}, NodeCIDRs: true}})
		time.Sleep(time.Minute)
		must.OK(client.CoreV1().Nodes().Create(t.Context(),
			node([]string{"192.0.2.1"}, []string{"10.244.1.0/24"}), metav1.CreateOptions{}))(t)
		n, s := f.made()
		require.Equal(t, 1, n)
		require.Equal(t, "10.244.1.0/24", s.Node().LocalPods.CIDRs[0].String())
		f.end(t)
	})
}

func TestRunIsCalledOnce(t *testing.T) {
	t.Parallel()
	s := must.OK(New(server(), nil))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Run(ctx, func(servicemodel.State) { t.Error("a state") }))
	require.ErrorContains(t, s.Run(ctx, nil), "before")
}

func TestTheNodeIsEligibleUntilItIsToGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := server()
		f := follow(t, client, &Config{Tracker: kube.Config{Node: servicemodel.Node{Name: "n1"}}})
		requireEligible := func(want bool) {
			t.Helper()
			synctest.Wait()
			require.Equal(t, want, f.NodeEligible())
		}

		requireEligible(false)
		nodes := client.CoreV1().Nodes()
		n := node([]string{"192.0.2.1"}, nil)
		must.OK(nodes.Create(t.Context(), n, metav1.CreateOptions{}))(t)
		requireEligible(true)
		n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
		must.OK(nodes.Update(t.Context(), n, metav1.UpdateOptions{}))(t)
		requireEligible(false)
		n.Spec.Taints = nil
		must.OK(nodes.Update(t.Context(), n, metav1.UpdateOptions{}))(t)
		requireEligible(true)
		require.NoError(t, nodes.Delete(t.Context(), "n1", metav1.DeleteOptions{}))
		requireEligible(false)
		f.end(t)
	})
}
