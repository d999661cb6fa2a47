package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/kernlb/kernlb/conntrack/tuning"
	"github.com/kernlb/kernlb/servicemodel"
)

// The functions in the table fields read a configuration into settings. A function for several
// fields is called for each of them. Its *valueError names the wrong field.

func wrong(field, format string, args ...any) error {
	return &valueError{field, fmt.Errorf(format, args...)}
}

func useAPIVersion(c *config, _ *settings) error {
	if c.APIVersion != apiVersion {
		return fmt.Errorf("%q: want %s", c.APIVersion, apiVersion)
	}
	return nil
}

func useKind(c *config, _ *settings) error {
	if c.Kind != kind {
		return fmt.Errorf("%q: want %s", c.Kind, kind)
	}
	return nil
}

// logGates returns the feature gates of logging, as configured.
func logGates(gates map[string]bool) (featuregate.MutableVersionedFeatureGate, error) {
	g := featuregate.NewFeatureGate()
	if err := logsapi.AddFeatureGates(g); err != nil {
		return nil, err
	}
	ours := map[string]bool{}
	for name, on := range gates {
		if _, known := g.GetAll()[featuregate.Feature(name)]; known {
			ours[name] = on
		}
	}
	return g, g.SetFromMap(ours)
}

// useGates refuses a gate that the program cannot obey and that its user relies on.
func useGates(c *config, s *settings) error {
	if on, set := c.FeatureGates["AllowServiceExternalIPs"]; set && !on {
		return wrong("featureGates.AllowServiceExternalIPs", "false: external IPs are always used")
	}
	s.featureGates = c.FeatureGates
	_, err := logGates(c.FeatureGates)
	return err
}

// checkGates returns warnings about feature gates that have no effect.
func checkGates(c *config) (warnings []string, err error) {
	g, err := logGates(nil)
	if err != nil {
		return nil, err
	}
	for name := range c.FeatureGates {
		if _, known := g.GetAll()[featuregate.Feature(name)]; !known {
			warnings = append(warnings, "featureGates."+name+" has no effect: it is about code of "+
				"Kubernetes that is not here")
		}
	}
	slices.Sort(warnings)
	return warnings, nil
}

func useClient(c *config, s *settings) error {
	cc := &c.ClientConnection
	if cc.Burst < 0 {
		return wrong("clientConnection.burst", "%d: must not be negative", cc.Burst)
	}
	s.client.kubeconfig, s.client.qps, s.client.burst = cc.Kubeconfig, cc.QPS, int(cc.Burst)
	s.client.acceptContentTypes, s.client.contentType = cc.AcceptContentTypes, cc.ContentType
	return nil
}

// useLogging only checks, because the logs are configured before all other fields.
func useLogging(c *config, _ *settings) error {
	g, err := logGates(c.FeatureGates)
	if err != nil {
		return err
	}
	if errs := logsapi.Validate(&c.Logging, g, nil); len(errs) > 0 {
		return &valueError{"logging." + errs[0].Field, errors.New(errs[0].ErrorBody())}
	}
	return nil
}

func useHostname(c *config, s *settings) (err error) {
	s.tracker.Node.Name, err = nodeName(c.HostnameOverride)
	return err
}

func useBindAddress(c *config, s *settings) error {
	a, err := netip.ParseAddr(c.BindAddress)
	if err != nil {
		return fmt.Errorf("%q: not an IP address", c.BindAddress)
	}
	if a = a.Unmap(); !a.IsUnspecified() {
		s.bindAddress = a
	}
	return nil
}

// listenAt parses an address to listen at. An empty address, which no default leaves, means none.
func listenAt(address string) (netip.AddrPort, error) {
	if address == "" {
		return netip.AddrPort{}, nil
	}
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return a, fmt.Errorf("%q: want an IP address and a port", address)
	}
	if a.Port() == 0 {
		return a, fmt.Errorf("%q: the port must be 1 to 65535", address)
	}
	return a, nil
}

func useHealthz(c *config, s *settings) (err error) {
	s.healthzAt, err = listenAt(c.HealthzBindAddress)
	return err
}

func useMetrics(c *config, s *settings) (err error) {
	s.metricsAt, err = listenAt(c.MetricsBindAddress)
	return err
}

func useHardFail(c *config, s *settings) error {
	s.hardFail = c.BindAddressHardFail
	return nil
}

func useProfiling(c *config, s *settings) error {
	s.profiling = c.EnableProfiling
	return nil
}

func useMode(c *config, s *settings) error {
	if s.mode = c.Mode; slices.Contains(modes(), c.Mode) {
		return nil
	}
	var want strings.Builder
	for _, m := range modes() {
		want.WriteString(string(m) + ", ")
	}
	return fmt.Errorf("%q: want %sor nothing", string(c.Mode), &want)
}

// useMasquerade reads fields that two sections have.
func useMasquerade(section string, bit *int32, all bool, s *settings) error {
	if *bit < 0 || *bit > 31 {
		return wrong(section+".masqueradeBit", "%d: must be 0 to 31", *bit)
	}
	s.tracker.Node.MasqueradeMark, s.tracker.Node.MasqueradeAll = 1<<*bit, all
	return nil
}

// usePeriods reads fields that three sections have.
func usePeriods(section string, period, least metav1.Duration, s *settings) error {
	switch {
	case period.Duration <= 0:
		return wrong(section+".syncPeriod", "%s: must be more than 0", period.Duration)
	case least.Duration < 0:
		return wrong(section+".minSyncPeriod", "%s: must not be negative", least.Duration)
	case least.Duration > period.Duration:
		return wrong(section+".minSyncPeriod", "%s: is more than syncPeriod, %s", least.Duration,
			period.Duration)
	}
	s.syncPeriod = period.Duration
	s.run.MinInterval, s.run.RetryMax = least.Duration, period.Duration
	return nil
}

func useIPTables(c *config, s *settings) error {
	t := &c.IPTables
	switch c.Mode {
	case modeNFTables:
		return nil
	case modeKernel: // which masquerades as it likes
		return usePeriods("iptables", t.SyncPeriod, t.MinSyncPeriod, s)
	}
	if err := useMasquerade("iptables", t.MasqueradeBit, t.MasqueradeAll, s); err != nil ||
		c.Mode == modeIPVS {
		return err
	}
	s.tracker.Node.LocalhostNodePorts = *t.LocalhostNodePorts
	return usePeriods("iptables", t.SyncPeriod, t.MinSyncPeriod, s)
}

func useNFTables(c *config, s *settings) error {
	if c.Mode != modeNFTables {
		return nil
	}
	t := &c.NFTables
	if err := useMasquerade("nftables", t.MasqueradeBit, t.MasqueradeAll, s); err != nil {
		return err
	}
	return usePeriods("nftables", t.SyncPeriod, t.MinSyncPeriod, s)
}

func useIPVS(c *config, s *settings) error {
	if c.Mode != modeIPVS {
		return nil
	}
	v := &c.IPVS
	if err := usePeriods("ipvs", v.SyncPeriod, v.MinSyncPeriod, s); err != nil {
		return err
	}
	s.run.Resync = v.SyncPeriod.Duration
	// This is kube-proxy's own default. While a scheduler replaces another, a virtual server that
	// is taken over refuses new connections (ipvs.Config.TakeOver).
	s.ipvs.Scheduler = servicemodel.RoundRobin
	if v.Scheduler != "" {
		var err error
		if s.ipvs.Scheduler, err = servicemodel.ParseScheduler(v.Scheduler); err != nil {
			return wrong("ipvs.scheduler", "%q: %w", v.Scheduler, err)
		}
	}
	if s.ipvs.StrictARP = v.StrictARP; v.StrictARP {
		s.ipvs.Device = ipvsDevice
	}
	for _, t := range []struct {
		field string
		value time.Duration
		to    *time.Duration
	}{
		{"ipvs.tcpTimeout", v.TCPTimeout.Duration, &s.ipvs.Timeouts.TCP},
		{"ipvs.tcpFinTimeout", v.TCPFinTimeout.Duration, &s.ipvs.Timeouts.TCPFin},
		{"ipvs.udpTimeout", v.UDPTimeout.Duration, &s.ipvs.Timeouts.UDP},
	} {
		if err := seconds(t.field, t.value, t.to); err != nil {
			return err
		}
	}
	return nil
}

// ipvsDevice holds the addresses of services if strictARP is set.
const ipvsDevice = "kernlb-ipvs0"

func useIPVSExclude(c *config, _ *settings) error {
	_, err := prefixes(c.IPVS.ExcludeCIDRs)
	return err
}

// seconds reads a duration that the kernel stores in seconds.
func seconds(field string, d time.Duration, to *time.Duration) error {
	if d < 0 {
		return wrong(field, "%s: must not be negative", d)
	}
	*to = d.Truncate(time.Second)
	if d > 0 && *to == 0 {
		return wrong(field, "%s: is less than a second, and 0 leaves what the node has", d)
	}
	return nil
}

// prefixes parses CIDRs. It ignores bits beyond the length, like kube-proxy.
func prefixes(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for i, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("[%d]: %q: not a CIDR", i, text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

func useDetectLocal(c *config, s *settings) error {
	s.tracker.Node.LocalPods, s.tracker.NodeCIDRs = servicemodel.PodDetector{}, false
	pods := &s.tracker.Node.LocalPods
	switch c.DetectLocalMode {
	case localClusterCIDR:
		return useClusterCIDR(c, pods)
	case localNodeCIDR:
		s.tracker.NodeCIDRs = true
	case localBridge:
		if pods.Bridge = c.DetectLocal.BridgeInterface; pods.Bridge == "" {
			return wrong("detectLocal.bridgeInterface", "is empty, and detectLocalMode is %s",
				c.DetectLocalMode)
		}
	case localPrefix:
		if pods.InterfacePrefix = c.DetectLocal.InterfaceNamePrefix; pods.InterfacePrefix == "" {
			return wrong("detectLocal.interfaceNamePrefix", "is empty, and detectLocalMode is %s",
				c.DetectLocalMode)
		}
	default:
		return wrong("detectLocalMode", "%q: want ClusterCIDR, NodeCIDR, BridgeInterface or "+
			"InterfaceNamePrefix", string(c.DetectLocalMode))
	}
	return nil
}

// useClusterCIDR parses one CIDR, or one of each family.
func useClusterCIDR(c *config, pods *servicemodel.PodDetector) error {
	if c.ClusterCIDR == "" {
		return nil
	}
	l, err := prefixes(strings.Split(c.ClusterCIDR, ","))
	if err != nil {
		return wrong("clusterCIDR", "%w", err)
	}
	if len(l) > 2 || len(l) == 2 && l[0].Addr().Is4() == l[1].Addr().Is4() {
		return wrong("clusterCIDR", "%q: want one CIDR, or one of each family", c.ClusterCIDR)
	}
	pods.CIDRs = l
	return nil
}

func useNodePortAddresses(c *config, s *settings) error {
	l := c.NodePortAddresses
	if c.Mode == modeKernel && len(l) > 0 {
		return errors.New("must be empty: HNS has node ports at all addresses")
	}
	if slices.Contains(l, "primary") {
		if len(l) != 1 {
			return errors.New("primary stands alone")
		}
		s.tracker.Node.NodePortAddresses.Primary = true
		return nil
	}
	var err error
	s.tracker.Node.NodePortAddresses.CIDRs, err = prefixes(l)
	return err
}

func useOOM(c *config, s *settings) error {
	if s.oomScoreAdj = *c.OOMScoreAdj; s.oomScoreAdj < -1000 || s.oomScoreAdj > 1000 {
		return fmt.Errorf("%d: must be -1000 to 1000", s.oomScoreAdj)
	}
	return nil
}

func useConntrack(c *config, s *settings) error {
	t := &c.Conntrack
	for _, n := range []struct {
		field string
		value int32
	}{{"conntrack.maxPerCore", *t.MaxPerCore}, {"conntrack.min", *t.Min}} {
		if n.value < 0 {
			return wrong(n.field, "%d: must not be negative", n.value)
		}
	}
	out := &tuning.Config{MaxPerCore: int(*t.MaxPerCore), Min: int(*t.Min),
		TCPBeLiberal: t.TCPBeLiberal}
	for _, d := range []struct {
		field string
		value time.Duration
		to    *time.Duration
	}{
		{"conntrack.tcpEstablishedTimeout", t.TCPEstablishedTimeout.Duration, &out.TCPEstablished},
		{"conntrack.tcpCloseWaitTimeout", t.TCPCloseWaitTimeout.Duration, &out.TCPCloseWait},
		{"conntrack.udpTimeout", t.UDPTimeout.Duration, &out.UDP},
		{"conntrack.udpStreamTimeout", t.UDPStreamTimeout.Duration, &out.UDPStream},
	} {
		if err := seconds(d.field, d.value, d.to); err != nil {
			return err
		}
	}
	s.conntrack = *out
	return nil
}

func useConfigSync(c *config, s *settings) error {
	if s.resync = c.ConfigSyncPeriod.Duration; s.resync <= 0 {
		return fmt.Errorf("%s: must be more than 0", s.resync)
	}
	return nil
}
