package serve

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/metaproxier"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
)

// KubeProxy is one of kube-proxy's proxiers. Nothing runs its loop. When it is told that its
// informers have synced, it syncs at once, in the caller's goroutine.
type KubeProxy struct {
	provider proxy.Provider
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName]*discoveryv1.EndpointSlice
	failures Failures
}

// kube-proxy's defaults. Periodic syncs do not disturb a comparison, because they are an hour
// apart.
const (
	SyncPeriod    = time.Hour
	MinSyncPeriod = time.Second
	MasqueradeBit = 14
)

// Detector recognizes packets of pods.
type Detector = proxyutil.LocalTrafficDetector

// NewKubeProxy returns proxiers of both families, or only of IPv4, as a peer. one returns the
// proxier of a family, on a node with a primary address. f counts the failed syncs. The proxiers'
// log goes to standard error, errors only.
func NewKubeProxy(s *Settings, f Failures, one func(family corev1.IPFamily, pods Detector,
	ip net.IP) (proxy.Provider, error)) (Syncer, error) {
	log := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(log)
	err := errors.Join(log.Set("logtostderr", "true"), log.Set("stderrthreshold", "ERROR"),
		// Tests decide whether the kernel suffices, not its version.
		os.Setenv("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK", "1"))
	if err != nil {
		return nil, err
	}
	provider, err := s.proxier(corev1.IPv4Protocol, one)
	if err == nil && !s.IPv4Only {
		var six proxy.Provider
		six, err = s.proxier(corev1.IPv6Protocol, one)
		provider = metaproxier.NewMetaProxier(provider, six)
	}

	if err != nil {
		return nil, err
	}
	if len(s.ServiceCIDRs) > 0 {
		var cidrs []string
		for _, p := range s.ServiceCIDRs {
			cidrs = append(cidrs, p.String())
		}
		provider.OnServiceCIDRsChanged(cidrs)
	}

	provider.OnEndpointSlicesSynced()
	return &KubeProxy{provider: provider, failures: f,
		services: map[types.NamespacedName]*corev1.Service{},
		slices:   map[types.NamespacedName]*discoveryv1.EndpointSlice{}}, nil
}

// proxier returns the proxier of a family.
func (s *Settings) proxier(f corev1.IPFamily, one func(corev1.IPFamily, Detector, net.IP) (
	proxy.Provider, error)) (proxy.Provider, error) {
	pods, ip := Detector(proxyutil.NewNoOpLocalDetector()), net.IP(nil)
	for _, p := range s.ClusterCIDRs {
		if Family(p.Addr().Is4()) == f {
			pods = proxyutil.NewDetectLocalByCIDR(p.String())
		}
	}

	for _, a := range slices.Backward(s.NodeAddrs) {
		if Family(a.Is4()) == f {
			ip = a.AsSlice()
		}
	}

	return one(f, pods, ip)
}

// Sync delivers a change to the proxier.
func (k *KubeProxy) Sync(_ context.Context, c *Change) error {
	for _, s := range c.Services {
		put(k.services, s, k.provider.OnServiceAdd, k.provider.OnServiceUpdate)
	}
	for _, s := range c.Slices {
		put(k.slices, s, k.provider.OnEndpointSliceAdd, k.provider.OnEndpointSliceUpdate)
	}
	for _, n := range c.GoneServices {
		k.provider.OnServiceDelete(k.services[n])
		delete(k.services, n)
	}

	for _, n := range c.GoneSlices {
		k.provider.OnEndpointSliceDelete(k.slices[n])
		delete(k.slices, n)
	}

	before := k.failures.count()
	k.provider.OnServiceSynced()
	if k.failures.count() != before {
		return fmt.Errorf("the sync failed; standard error says why")
	}
	return nil
}

// put reports an object to the proxier, and adds it to the known objects.
func put[T metav1.Object](known map[types.NamespacedName]T, o T, add func(T),
	update func(old, o T)) {
	n := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	if old, found := known[n]; found {
		update(old, o)
	} else {
		add(o)
	}

	known[n] = o
}

// Family is the family of an address.
func Family(is4 bool) corev1.IPFamily {
	if is4 {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}
