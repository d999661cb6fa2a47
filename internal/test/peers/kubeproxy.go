package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	utilsysctl "k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	"k8s.io/kubernetes/pkg/proxy/ipvs"
	utilipset "k8s.io/kubernetes/pkg/proxy/ipvs/ipset"
	utilipvs "k8s.io/kubernetes/pkg/proxy/ipvs/util"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"
)

// kubeProxy is one of kube-proxy's proxiers. Nothing runs its loop. It syncs when it is told that
// its informers have synced: at once, and in the caller's goroutine.
type kubeProxy struct {
	provider proxy.Provider
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName]*discoveryv1.EndpointSlice
	failures failures
}

// Periods that never end, and kube-proxy's defaults.
const (
	syncPeriod    = time.Hour
	minSyncPeriod = time.Second
	masqueradeBit = 14
)

func newKubeProxy(provider proxy.Provider, s *settings, f failures) *kubeProxy {
	var cidrs []string
	for _, p := range s.ServiceCIDRs {
		cidrs = append(cidrs, p.String())
	}
	if len(cidrs) > 0 {
		provider.OnServiceCIDRsChanged(cidrs)
	}
	provider.OnEndpointSlicesSynced()
	return &kubeProxy{provider: provider, failures: f,
		services: map[types.NamespacedName]*corev1.Service{},
		slices:   map[types.NamespacedName]*discoveryv1.EndpointSlice{}}
}

func (k *kubeProxy) sync(_ context.Context, c *change) error {
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

// detectors are how the proxiers tell pods.
func detectors(s *settings) map[corev1.IPFamily]proxyutil.LocalTrafficDetector {
	m := map[corev1.IPFamily]proxyutil.LocalTrafficDetector{
		corev1.IPv4Protocol: proxyutil.NewNoOpLocalDetector(),
		corev1.IPv6Protocol: proxyutil.NewNoOpLocalDetector(),
	}
	for _, p := range s.ClusterCIDRs {
		m[family(p.Addr().Is4())] = proxyutil.NewDetectLocalByCIDR(p.String())
	}
	return m
}

func family(is4 bool) corev1.IPFamily {
	if is4 {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// nodeIPs are the primary addresses of the node.
func nodeIPs(s *settings) map[corev1.IPFamily]net.IP {
	m := map[corev1.IPFamily]net.IP{}
	for _, a := range s.NodeAddrs {
		if f := family(a.Is4()); m[f] == nil {
			m[f] = a.AsSlice()
		}
	}
	return m
}

func newKubeNFTables(ctx context.Context, s *settings) (syncer, error) {
	prepare()
	// Tests decide whether the kernel suffices, not its version.
	if err := os.Setenv("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK", "1"); err != nil {
		return nil, err
	}
	d, ips := detectors(s), nodeIPs(s)
	var p proxy.Provider
	var err error
	if s.IPv4Only {
		p, err = nftables.NewProxier(ctx, corev1.IPv4Protocol, syncPeriod, minSyncPeriod, false,
			masqueradeBit, d[corev1.IPv4Protocol], nodeName,
			ips[corev1.IPv4Protocol], nil, nil, nil, false)
	} else {
		p, err = nftables.NewDualStackProxier(ctx, syncPeriod, minSyncPeriod, false, masqueradeBit,
			d, nodeName, ips, nil, nil, nil, false)
	}
	if err != nil {
		return nil, err
	}
	return newKubeProxy(p, s, nftablesFailures), nil
}

// newKubeIPTables makes the iptables proxier run the programs of that variant: "nft" or "legacy".
func newKubeIPTables(variant string) func(context.Context, *settings) (syncer, error) {
	return func(ctx context.Context, s *settings) (syncer, error) {
		prepare()
		if err := useIPTables(variant); err != nil {
			return nil, err
		}
		d, ips, ipts := detectors(s), nodeIPs(s), utiliptables.NewBestEffort()
		var p proxy.Provider
		var err error
		if s.IPv4Only {
			p, err = iptables.NewProxier(ctx, corev1.IPv4Protocol, ipts[corev1.IPv4Protocol],
				utilsysctl.New(), syncPeriod, minSyncPeriod, false, false,
				masqueradeBit, d[corev1.IPv4Protocol], nodeName, ips[corev1.IPv4Protocol], nil, nil,
				nil, false)
		} else {
			p, err = iptables.NewDualStackProxier(ctx, ipts, utilsysctl.New(), syncPeriod,
				minSyncPeriod, false, false, masqueradeBit, d, nodeName, ips,
				nil, nil, nil, false)
		}
		if err != nil {
			return nil, err
		}
		return newKubeProxy(p, s, iptablesFailures), nil
	}
}

func newKubeIPVS(ctx context.Context, s *settings) (syncer, error) {
	prepare()
	if err := useIPTables("nft"); err != nil {
		return nil, err
	}
	virtual, sets := utilipvs.New(), utilipset.New()
	if err := ipvs.CanUseIPVSProxier(ctx, virtual, sets, ""); err != nil {
		return nil, err
	}
	d, ips, ipts := detectors(s), nodeIPs(s), utiliptables.NewBestEffort()
	var p proxy.Provider
	var err error
	if s.IPv4Only {
		p, err = ipvs.NewProxier(ctx, corev1.IPv4Protocol, ipts[corev1.IPv4Protocol], virtual, sets,
			utilsysctl.New(), syncPeriod, minSyncPeriod, nil, false,
			0, 0, 0, false, masqueradeBit, d[corev1.IPv4Protocol], nodeName,
			ips[corev1.IPv4Protocol], nil, nil, "", nil, false)
	} else {
		p, err = ipvs.NewDualStackProxier(ctx, ipts, virtual, sets, utilsysctl.New(), syncPeriod,
			minSyncPeriod, nil, false, 0, 0, 0, false, masqueradeBit,
			d, nodeName, ips, nil, nil, "", nil, false)
	}
	if err != nil {
		return nil, err
	}
	return newKubeProxy(p, s, iptablesFailures), nil
}

// prepare sends the proxiers' log to standard error, errors only.
func prepare() {
	fs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(fs)
	_ = fs.Set("logtostderr", "true")
	_ = fs.Set("stderrthreshold", "ERROR")
}

// useIPTables makes "iptables" and its companions run the programs of a variant, whatever the
// machine's default is.
func useIPTables(variant string) error {
	dir, err := os.MkdirTemp("", "peers-iptables-")
	if err != nil {
		return err
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, part := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(name + "-" + variant + part)
			if err != nil {
				return err
			}
			if program, err = filepath.EvalSymlinks(program); err != nil {
				return err
			}
			if err := os.Symlink(program, filepath.Join(dir, name+part)); err != nil {
				return err
			}
		}
	}
	// Legacy programs of all namespaces would wait for one another otherwise.
	if err := os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock")); err != nil {
		return err
	}
	return os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
