package main

import (
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// config is a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1.
type config = v1alpha1.KubeProxyConfiguration

const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"

	modeIPTables = v1alpha1.ProxyMode("iptables")
	modeNFTables = v1alpha1.ProxyMode("nftables")
	modeIPVS     = v1alpha1.ProxyMode("ipvs")
	modeKernel   = v1alpha1.ProxyMode("kernelspace") // on Windows

	localClusterCIDR = v1alpha1.LocalMode("ClusterCIDR")
	localNodeCIDR    = v1alpha1.LocalMode("NodeCIDR")
	localBridge      = v1alpha1.LocalMode("BridgeInterface")
	localPrefix      = v1alpha1.LocalMode("InterfaceNamePrefix")

	healthzPort = 10256
	metricsPort = 10249
)

// The default minimum time between two syncs follows from the time of a sync with 10,000 services:
// 0.2 ms on nftables, 57 ms on iptables. Kube-proxy's default is a second.
const (
	minSyncNFTables = 10 * time.Millisecond
	minSyncIPTables = 200 * time.Millisecond
)

// setDefaults sets missing fields to kube-proxy's defaults
// (pkg/proxy/apis/config/v1alpha1/defaults.go in Kubernetes 1.36), except minSyncPeriod.
// [setModeDefaults] sets the fields that depend on the mode.
func setDefaults(c *config) {
	c.APIVersion, c.Kind = apiVersion, kind
	fill(&c.BindAddress, "0.0.0.0")
	all, local := "0.0.0.0", "127.0.0.1"
	if a, err := netip.ParseAddr(c.BindAddress); err == nil && a.Is6() {
		all, local = "::", "::1"
	}
	fill(&c.HealthzBindAddress, all)
	fill(&c.MetricsBindAddress, local)
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, healthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, metricsPort)
	fill(&c.OOMScoreAdj, ptr[int32](-999))
	fill(&c.IPTables.SyncPeriod.Duration, 30*time.Second)
	fill(&c.IPTables.MinSyncPeriod.Duration, minSyncIPTables)
	fill(&c.IPTables.LocalhostNodePorts, ptr(true))
	fill(&c.IPTables.MasqueradeBit, ptr[int32](14))
	fill(&c.IPVS.SyncPeriod.Duration, 30*time.Second)
	fill(&c.NFTables.SyncPeriod.Duration, 30*time.Second)
	fill(&c.NFTables.MinSyncPeriod.Duration, minSyncNFTables)
	fill(&c.NFTables.MasqueradeBit, ptr[int32](14))
	fill(&c.Conntrack.MaxPerCore, ptr[int32](32*1024))
	fill(&c.Conntrack.Min, ptr[int32](128*1024))
	fill(&c.Conntrack.TCPEstablishedTimeout, &metav1.Duration{Duration: 24 * time.Hour})
	fill(&c.Conntrack.TCPCloseWaitTimeout, &metav1.Duration{Duration: time.Hour})
	fill(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	fill(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	fill(&c.ClientConnection.QPS, 5)
	fill(&c.ClientConnection.Burst, 10)
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

// setModeDefaults sets missing fields whose default depends on the mode (platformApplyDefaults in
// cmd/kube-proxy/app/server_linux.go and server_windows.go). The flags and the file must be known
// by then.
func setModeDefaults(c *config) {
	fill(&c.Mode, modes()[0])
	if c.Mode == modeKernel {
		fill(&c.Winkernel.RootHnsEndpointName, "cbr0")
	}
	if c.Mode == modeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{"primary"}
	}
	fill(&c.DetectLocalMode, localClusterCIDR)
}

// fill sets a field that is zero.
func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func ptr[T any](v T) *T { return &v }

// withPort appends the port to an address without one. It returns any other text unchanged, because
// the check of the field reports it.
func withPort(address string, port uint16) string {
	a, err := netip.ParseAddr(strings.Trim(address, "[]"))
	if err != nil {
		return address
	}
	return netip.AddrPortFrom(a, port).String()
}
