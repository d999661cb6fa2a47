package serve

import (
	"context"
	"flag"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/proxy"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
)

// KubeProxy is one of kube-proxy's proxiers. Nothing runs its loop. It syncs when it is told that
// its informers have synced: at once, and in the caller's goroutine.
type KubeProxy struct {
	provider proxy.Provider
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName]*discoveryv1.EndpointSlice
	failures Failures
}

// kube-proxy's defaults. No periodic sync comes into a comparison, because it is an hour apart.
const (
	SyncPeriod    = time.Hour
	MinSyncPeriod = time.Second
	MasqueradeBit = 14
)

// NewKubeProxy returns a proxier as a peer. Its failed syncs are counted by f.
func NewKubeProxy(provider proxy.Provider, s *Settings, f Failures) *KubeProxy {
	var cidrs []string
	for _, p := range s.ServiceCIDRs {
		cidrs = append(cidrs, p.String())
	}
	if len(cidrs) > 0 {
		provider.OnServiceCIDRsChanged(cidrs)
	}
	provider.OnEndpointSlicesSynced()
	return &KubeProxy{provider: provider, failures: f,
		services: map[types.NamespacedName]*corev1.Service{},
		slices:   map[types.NamespacedName]*discoveryv1.EndpointSlice{}}
}

// Sync delivers a change to the proxier.
func (k *KubeProxy) Sync(_ context.Context, c *Change) error {
	for _, s := range c.Services {
		n := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		if old := k.services[n]; old != nil {
			k.provider.OnServiceUpdate(old, s)
		} else {
			k.provider.OnServiceAdd(s)
		}
		k.services[n] = s
	}
	for _, s := range c.Slices {
		n := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		if old := k.slices[n]; old != nil {
			k.provider.OnEndpointSliceUpdate(old, s)
		} else {
			k.provider.OnEndpointSliceAdd(s)
		}
		k.slices[n] = s
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

// Detectors are how the proxiers tell pods.
func Detectors(s *Settings) map[corev1.IPFamily]proxyutil.LocalTrafficDetector {
	m := map[corev1.IPFamily]proxyutil.LocalTrafficDetector{
		corev1.IPv4Protocol: proxyutil.NewNoOpLocalDetector(),
		corev1.IPv6Protocol: proxyutil.NewNoOpLocalDetector(),
	}
	for _, p := range s.ClusterCIDRs {
		m[Family(p.Addr().Is4())] = proxyutil.NewDetectLocalByCIDR(p.String())
	}
	return m
}

// Family is the family of an address.
func Family(is4 bool) corev1.IPFamily {
	if is4 {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// NodeIPs are the primary addresses of the node.
func NodeIPs(s *Settings) map[corev1.IPFamily]net.IP {
	m := map[corev1.IPFamily]net.IP{}
	for _, a := range s.NodeAddrs {
		if f := Family(a.Is4()); m[f] == nil {
			m[f] = a.AsSlice()
		}
	}
	return m
}

// Prepare sends the proxiers' log to standard error, errors only.
func Prepare() {
	fs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(fs)
	_ = fs.Set("logtostderr", "true")
	_ = fs.Set("stderrthreshold", "ERROR")
}
