package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1alpha1 "k8s.io/component-base/config/v1alpha1"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kernlb/kernlb/conntrack/tuning"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/examples/kernelspace"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// settings control the program. They come from the fields of the configuration.
type settings struct {
	mode         v1alpha1.ProxyMode
	client       configv1alpha1.ClientConnectionConfiguration
	master       string // instead of the server in the client's kubeconfig file
	tracker      kube.Config
	resync       time.Duration  // of the objects of the API server
	bindAddress  netip.Addr     // the configured primary address of the node; may be invalid
	healthzAt    netip.AddrPort // invalid: not served
	metricsAt    netip.AddrPort // invalid: not served
	hardFail     bool
	profiling    bool
	oomScoreAdj  int32
	conntrack    tuning.Config
	ipvs         ipvs.Config
	kernel       kernelspace.Config
	asService    bool // of Windows
	ejects       bool // silent endpoints of all services are taken out
	run          dataplane.RunOptions
	featureGates map[string]bool // the gates of logging
}

// valueError is an error about a field or flag.
type valueError struct {
	field string // as in the file; of a flag, "--NAME"
	err   error
}

func (e *valueError) Error() string { return e.field + ": " + e.err.Error() }
func (e *valueError) Unwrap() error { return e.err }

// reader reads a configuration with defaults into settings, section by section, and notes the
// errors.
type reader struct {
	c     *config
	s     *settings
	wrong []*valueError
}

// newSettings derives settings from a configuration with defaults. It also returns warnings, and
// errors for invalid values.
func newSettings(c *config) (*settings, []string, []*valueError) {
	r := &reader{c: c, s: &settings{tracker: kube.Config{Triggers: true}}}
	r.program()
	r.kernel()
	r.ipvs()
	r.pods()
	r.conntrack()
	r.windows()
	var warnings []string
	for _, f := range fields {
		if f.field != "" && f.effect == noEffect && !fieldAt(c, f.field).IsZero() {
			warnings = append(warnings, f.field+" has no effect: "+f.text)
		}
	}

	return r.s, append(warnings, r.gates()...), r.wrong
}

// must notes a wrong value unless ok.
func (r *reader) must(ok bool, field, format string, args ...any) {
	if !ok {
		r.wrong = append(r.wrong, &valueError{field, fmt.Errorf(format, args...)})
	}
}

// program reads the settings of the process.
func (r *reader) program() {
	c, s := r.c, r.s
	r.must(c.APIVersion == apiVersion, "apiVersion", "%q: want %s", c.APIVersion, apiVersion)
	r.must(c.Kind == kind, "kind", "%q: want %s", c.Kind, kind)
	s.client = c.ClientConnection
	r.must(s.client.Burst >= 0, "clientConnection.burst", "%d: must not be negative",
		s.client.Burst)
	var err error
	s.tracker.Node.Name, err = nodeName(c.HostnameOverride)
	r.must(err == nil, "hostnameOverride", "%w", err)
	a, err := netip.ParseAddr(c.BindAddress)
	r.must(err == nil, "bindAddress", "%q: not an IP address", c.BindAddress)
	if a = a.Unmap(); !a.IsUnspecified() {
		s.bindAddress = a
	}
	s.healthzAt = r.listenAt("healthzBindAddress", c.HealthzBindAddress)
	s.metricsAt = r.listenAt("metricsBindAddress", c.MetricsBindAddress)
	s.hardFail, s.profiling = c.BindAddressHardFail, c.EnableProfiling
	s.oomScoreAdj = *c.OOMScoreAdj
	r.must(s.oomScoreAdj >= -1000 && s.oomScoreAdj <= 1000, "oomScoreAdj",
		"%d: must be -1000 to 1000", s.oomScoreAdj)
	s.resync = c.ConfigSyncPeriod.Duration
	r.must(s.resync > 0, "configSyncPeriod", "%s: must be more than 0", s.resync)
}

// listenAt parses an address to listen at. An empty address, which no default leaves, means none.
func (r *reader) listenAt(field, address string) (at netip.AddrPort) {
	if address == "" {
		return at
	}
	at, err := netip.ParseAddrPort(address)
	r.must(err == nil, field, "%q: want an IP address and a port", address)
	r.must(err != nil || at.Port() != 0, field, "%q: the port must be 1 to 65535", address)
	return at
}

// kernel reads the mode, and the section of the mode, except the section ipvs.
func (r *reader) kernel() {
	c, s := r.c, r.s
	var want strings.Builder
	for _, m := range modes() {
		want.WriteString(string(m) + ", ")
	}
	s.mode = c.Mode
	r.must(slices.Contains(modes(), c.Mode), "mode", "%q: want %sor nothing", string(c.Mode), &want)
	if t := &c.NFTables; c.Mode == modeNFTables {
		r.masquerade("nftables", *t.MasqueradeBit, t.MasqueradeAll)
		r.periods("nftables", t.SyncPeriod, t.MinSyncPeriod)
		return
	}

	t := &c.IPTables
	if c.Mode != modeKernel { // which masquerades as it likes
		r.masquerade("iptables", *t.MasqueradeBit, t.MasqueradeAll)
	}
	if c.Mode == modeIPVS {
		r.periods("ipvs", c.IPVS.SyncPeriod, c.IPVS.MinSyncPeriod)
		s.run.Resync = c.IPVS.SyncPeriod.Duration
		return
	}

	s.tracker.Node.LocalhostNodePorts = *t.LocalhostNodePorts && c.Mode != modeKernel
	r.periods("iptables", t.SyncPeriod, t.MinSyncPeriod)
}

// masquerade reads fields that two sections have.
func (r *reader) masquerade(section string, bit int32, all bool) {
	r.must(bit >= 0 && bit <= 31, section+".masqueradeBit", "%d: must be 0 to 31", bit)
	r.s.tracker.Node.MasqueradeMark, r.s.tracker.Node.MasqueradeAll = 1<<(bit&31), all
}

// periods reads fields that three sections have.
func (r *reader) periods(section string, period, least metav1.Duration) {
	r.must(period.Duration > 0, section+".syncPeriod", "%s: must be more than 0", period.Duration)
	r.must(least.Duration >= 0, section+".minSyncPeriod", "%s: must not be negative",
		least.Duration)
	r.must(least.Duration <= max(0, period.Duration), section+".minSyncPeriod",
		"%s: is more than syncPeriod, %s", least.Duration, period.Duration)
	r.s.run.MinInterval, r.s.run.RetryMax = least.Duration, period.Duration
}

// ipvs reads the section ipvs, except its periods.
func (r *reader) ipvs() {
	v, s := &r.c.IPVS, &r.s.ipvs
	r.cidrs("ipvs.excludeCIDRs", v.ExcludeCIDRs)
	if r.c.Mode != modeIPVS {
		return
	}

	// The default is kube-proxy's own. While a scheduler replaces another, a virtual server that is
	// taken over refuses new connections (ipvs.Config.TakeOver).
	var err error
	s.Scheduler, err = servicemodel.ParseScheduler(cmp.Or(v.Scheduler, "rr"))
	r.must(err == nil, "ipvs.scheduler", "%q: %w", v.Scheduler, err)
	s.StrictARP = v.StrictARP
	if v.StrictARP {
		s.Device = ipvsDevice
	}
	s.Timeouts.TCP = r.seconds("ipvs.tcpTimeout", v.TCPTimeout)
	s.Timeouts.TCPFin = r.seconds("ipvs.tcpFinTimeout", v.TCPFinTimeout)
	s.Timeouts.UDP = r.seconds("ipvs.udpTimeout", v.UDPTimeout)
}

// ipvsDevice holds the addresses of services if strictARP is set.
const ipvsDevice = "kernlb-ipvs0"

// seconds reads a duration that the kernel stores in seconds.
func (r *reader) seconds(field string, d metav1.Duration) time.Duration {
	r.must(d.Duration >= 0, field, "%s: must not be negative", d.Duration)
	r.must(d.Duration <= 0 || d.Duration >= time.Second, field,
		"%s: is less than a second, and 0 leaves what the node has", d.Duration)
	return d.Truncate(time.Second)
}

// cidrs parses CIDRs. It ignores bits beyond the length, like kube-proxy.
func (r *reader) cidrs(field string, texts []string) (l []netip.Prefix) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		r.must(err == nil, field, "%q: must be a CIDR such as 10.244.0.0/16", text)
		l = append(l, p.Masked())
	}

	return l
}

// pods reads the settings for recognizing packets of pods, and the addresses of node ports.
func (r *reader) pods() {
	c, pods := r.c, &r.s.tracker.Node.LocalPods
	switch c.DetectLocalMode {
	case localClusterCIDR:
		if c.ClusterCIDR != "" {
			l := r.cidrs("clusterCIDR", strings.Split(c.ClusterCIDR, ","))
			r.must(len(l) < 2 || len(l) == 2 && l[0].Addr().Is4() != l[1].Addr().Is4(),
				"clusterCIDR", "%q: want one CIDR, or one of each family", c.ClusterCIDR)
			pods.CIDRs = l
		}
	case localNodeCIDR:
		r.s.tracker.NodeCIDRs = true
	case localBridge:
		pods.Bridge = c.DetectLocal.BridgeInterface
		r.must(pods.Bridge != "", "detectLocal.bridgeInterface",
			"is empty, and detectLocalMode is %s", c.DetectLocalMode)
	case localPrefix:
		pods.InterfacePrefix = c.DetectLocal.InterfaceNamePrefix
		r.must(pods.InterfacePrefix != "", "detectLocal.interfaceNamePrefix",
			"is empty, and detectLocalMode is %s", c.DetectLocalMode)
	default:
		r.must(false, "detectLocalMode", "%q: want ClusterCIDR, NodeCIDR, BridgeInterface or "+
			"InterfaceNamePrefix", string(c.DetectLocalMode))
	}

	const field = "nodePortAddresses"
	l, at := c.NodePortAddresses, &r.s.tracker.Node.NodePortAddresses
	r.must(c.Mode != modeKernel || len(l) == 0, field,
		"must be empty: HNS has node ports at all addresses")
	if at.Primary = slices.Contains(l, "primary"); at.Primary {
		r.must(len(l) == 1, field, "primary stands alone")
	} else {
		at.CIDRs = r.cidrs(field, l)
	}
}

// conntrack reads the section conntrack.
func (r *reader) conntrack() {
	t := &r.c.Conntrack
	r.must(*t.MaxPerCore >= 0, "conntrack.maxPerCore", "%d: must not be negative", *t.MaxPerCore)
	r.must(*t.Min >= 0, "conntrack.min", "%d: must not be negative", *t.Min)
	r.s.conntrack = tuning.Config{MaxPerCore: int(*t.MaxPerCore), Min: int(*t.Min),
		TCPBeLiberal:   t.TCPBeLiberal,
		TCPEstablished: r.seconds("conntrack.tcpEstablishedTimeout", *t.TCPEstablishedTimeout),
		TCPCloseWait:   r.seconds("conntrack.tcpCloseWaitTimeout", *t.TCPCloseWaitTimeout),
		UDP:            r.seconds("conntrack.udpTimeout", t.UDPTimeout),
		UDPStream:      r.seconds("conntrack.udpStreamTimeout", t.UDPStreamTimeout)}
}

// windows reads the settings for Windows.
func (r *reader) windows() {
	w := &r.c.Winkernel
	r.s.asService = r.c.WindowsRunAsService
	k := kernelspace.Config{Network: w.NetworkName, EnableDSR: w.EnableDSR,
		RootEndpoint: w.RootHnsEndpointName, ForwardHealthCheckVIP: w.ForwardHealthCheckVip}
	if w.SourceVip != "" {
		a, err := netip.ParseAddr(w.SourceVip)
		r.must(err == nil, "winkernel.sourceVip", "%q: not an IP address", w.SourceVip)
		k.SourceVIP = a.Unmap()
	}

	r.s.kernel = k
}

// gates reads the settings of the log, and the feature gates. It returns warnings about gates that
// have no effect, and refuses a gate that the program cannot obey but on which its user relies. The
// logs themselves are configured before all other fields.
func (r *reader) gates() (warnings []string) {
	c := r.c
	on, set := c.FeatureGates["AllowServiceExternalIPs"]
	r.must(on || !set, "featureGates.AllowServiceExternalIPs",
		"false: external IPs are always used")
	r.s.featureGates = c.FeatureGates
	g, err := logGates(c.FeatureGates)
	r.must(err == nil, "featureGates", "%w", err)
	if err != nil {
		return nil
	}
	for _, e := range logsapi.Validate(&c.Logging, g, nil) {
		r.must(false, "logging."+e.Field, "%s", e.ErrorBody())
	}
	for _, name := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		if _, known := g.GetAll()[featuregate.Feature(name)]; !known {
			warnings = append(warnings, "featureGates."+name+" has no effect: it is about code of "+
				"Kubernetes that is not here")
		}
	}

	return warnings
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

// nodeName returns the name of the node: the configured name, or else the name of the host.
func nodeName(override string) (string, error) {
	name := strings.TrimSpace(override)
	if name == "" {
		if override != "" {
			return "", errors.New("is blank")
		}
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("ask for the host's name: %w", err)
		}
		name = strings.TrimSpace(host)
	}

	if name == "" {
		return "", errors.New("is empty, and the host has no name")
	}
	return strings.ToLower(name), nil
}

// withAddress makes the configured address the primary address of its family, before the addresses
// of the Node object, as in kube-proxy. Without any address, "primary" means all local addresses.
func (s *settings) withAddress(state servicemodel.State) servicemodel.State {
	n := state.Node()
	if s.mode == modeKernel {
		n.ServiceCIDRs = nil // HNS cannot drop what no service has; nor does kube-proxy there
	}
	if len(n.Addresses) == 0 && !s.bindAddress.IsValid() && n.NodePortAddresses.Primary {
		n.NodePortAddresses = servicemodel.NodePortAddresses{} // and not nowhere
	}
	if !s.bindAddress.IsValid() {
		return state.WithNode(n)
	}
	addresses := []netip.Addr{s.bindAddress}
	for _, a := range n.Addresses {
		if a.Is4() != s.bindAddress.Is4() {
			addresses = append(addresses, a)
		}
	}

	n.Addresses = addresses
	return state.WithNode(n)
}
