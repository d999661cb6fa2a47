package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/conntrack/tuning"
	"github.com/kernlb/kernlb/examples/internal/instance"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// options are the flags of all commands. Each command defines its own.
type options struct {
	files    []string
	changes  string // apply: file of a plan, instead of manifests
	backend  string
	instance string
	output   string
	goOn     bool   // leave out refused services
	status   string // address of a running program
	strict   bool   // watch: a refused service refuses the whole state
	empty    bool   // manifests without services remove all
	copies   string
	of       string // cleanup: the other program
	planOnly bool   // tune, cleanup -of: print only the plan
	node     servicemodel.Node
	services int
	endpoint int
	flow     flowOptions
	trace    traceOptions
	show     showOptions
	count    countOptions
	object   string // explain: text of an object
	listen   listenOptions
	graph    graphOptions
	top      topOptions

	about     string            // explain: the service, as the user gave it
	explained servicemodel.Name // and parsed
	ipvs      ipvs.Config       // configuration from flags

	annotations string
}

// flowOptions are the flags about flows.
type flowOptions struct {
	keep        bool
	connections servicemodel.ConnectionPolicy
	watch       bool
	bench       int
	tuning      tuning.Config
}

// defaultBit is the bit of servicemodel.DefaultMasqueradeMark.
const defaultBit = 12

// list is a flag that may be repeated.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func (o *options) inputFlags(fs *flag.FlagSet) func() error {
	fs.Var((*list)(&o.files), "f",
		"manifest `FILE`, YAML or JSON, for watch a directory; a directory stands for the "+
			"*.yaml, *.yml and *.json in it; for other commands, - is standard input, and the "+
			"flag may be repeated")
	fs.StringVar(&o.annotations, "annotations", "kernlb.io",
		"`PREFIX` of the annotations of services that ask for a scheduler, a forwarding method, "+
			"or what becomes of connections; empty: they mean nothing")
	return nil
}

// checkInput checks that there are manifests or a plan to apply.
func (o *options) checkInput() error {
	switch {
	case o.changes != "" && len(o.files) > 0:
		return errors.New("-changes: what was planned is applied without manifests (-f)")
	case len(o.files) == 0 && o.changes == "":
		return errors.New("there are no manifests: -f FILE")
	}
	return nil
}

func (o *options) outputFlag(fs *flag.FlagSet) func() error {
	fs.StringVar(&o.output, "o", "text", "output `FORMAT`: text or json")
	return func() error {
		if o.output != "text" && o.output != "json" {
			return fmt.Errorf("-o: %q: want text or json", o.output)
		}
		return nil
	}
}

// instanceName matches names from which every backend can make names of kernel objects.
var instanceName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,57}$`)

func (o *options) kernelFlags(fs *flag.FlagSet) func() error {
	fs.StringVar(&o.backend, "backend", backendNames()[0],
		"`NAME` of the kernel mechanism: "+strings.Join(backendNames(), ", ")+
			"; auto takes the first that the kernel supports and that can do what the services "+
			"ask for")
	fs.StringVar(&o.instance, "instance", instance.Default,
		"owner `NAME` of the kernel objects; instances do not see each other")
	return func() error {
		if !slices.Contains(backendNames(), o.backend) {
			return fmt.Errorf("-backend: %q: want one of %s", o.backend,
				strings.Join(backendNames(), ", "))
		}
		if !instanceName.MatchString(o.instance) {
			return fmt.Errorf("-instance: %q: want a letter, then letters, digits, "+
				"\"_\", \"-\" or \".\", 58 in all at most", o.instance)
		}
		return nil
	}
}

func (o *options) applyFlags(fs *flag.FlagSet) func() error {
	fs.StringVar(&o.changes, "changes", "",
		"`FILE` that plan -o json has printed; its changes are applied if the kernel holds what "+
			"it held then, and nothing else is")
	return nil
}

func (o *options) goOnFlag(fs *flag.FlagSet) func() error {
	fs.BoolVar(&o.goOn, "keep-going", false,
		"leave out the services that are invalid or that the backend refuses, and print each; "+
			"the exit code is 1 if there were any (default: they refuse the whole state)")
	return nil
}

func (o *options) emptyFlag(fs *flag.FlagSet) func() error {
	fs.BoolVar(&o.empty, "allow-empty", false,
		"if the manifests have no service, remove all that the kernel has (default: that is an "+
			"error, and watch waits for services)")
	return nil
}

func (o *options) watchFlags(fs *flag.FlagSet) func() error {
	fs.BoolVar(&o.strict, "strict", false, "change nothing while a service is invalid or refused "+
		"(default: it stays as it was, and everything else is applied)")
	fs.StringVar(&o.copies, "copies", "",
		"`DIR` for the last whole version of each manifest, in case that one is broken when the "+
			"program starts again (default: one in $RUNTIME_DIRECTORY or /run/kernlb)")
	return nil
}

// ofKubeProxy is the value of -of for kube-proxy.
const ofKubeProxy = "kube-proxy"

func (o *options) cleanupFlags(fs *flag.FlagSet) func() error {
	fs.StringVar(&o.of, "of", "", "delete what another `PROGRAM` left, which must be "+
		ofKubeProxy+" (default: what the instance has)")
	return func() error {
		if o.of != "" && o.of != ofKubeProxy {
			return fmt.Errorf("-of: %q: want %s", o.of, ofKubeProxy)
		}
		return nil
	}
}

// checkCleanup checks the flags of cleanup.
func (o *options) checkCleanup() error {
	switch {
	case o.planOnly && o.of == "":
		return errors.New("-plan needs -of")
	case o.of == "" && o.backend == auto:
		return fmt.Errorf("-backend: name the backend to clean up, not %s", auto)
	}
	return nil
}

func (o *options) planFlag(fs *flag.FlagSet) func() error {
	fs.BoolVar(&o.planOnly, "plan", false, "print what would be done, and change nothing")
	return nil
}

func (o *options) explainFlags(fs *flag.FlagSet) func() error {
	fs.StringVar(&o.object, "object", "", "say which service wants the objects of the kernel that "+
		"have `TEXT` in what explain prints of them, such as the name of a chain")
	return nil
}

// checkExplain parses the service of explain.
func (o *options) checkExplain() error {
	namespace, name, ok := strings.Cut(o.about, "/")
	o.explained = servicemodel.Name{Namespace: namespace, Name: name}
	switch {
	case o.object != "" && o.about != "":
		return fmt.Errorf("explain is about -object, or about the service %s", o.about)
	case o.object != "":
		return nil
	case !ok || namespace == "" || name == "":
		return fmt.Errorf("explain needs a service: NAMESPACE/NAME, not %q", o.about)
	}
	return nil
}

func (o *options) benchFlags(fs *flag.FlagSet) func() error {
	fs.IntVar(&o.services, "services", 10000, "number `N` of services")
	fs.IntVar(&o.endpoint, "endpoints", 10, "number `M` of endpoints of each service")
	fs.IntVar(&o.flow.bench, "flows", 0, "measure with `N` flows what cleaning them up takes")
	return func() error {
		return errors.Join(between("services", o.services, 1, 1<<20),
			between("endpoints", o.endpoint, 1, 1<<12), between("flows", o.flow.bench, 0, 1<<22))
	}
}

// between checks the number of a flag.
func between(name string, n, low, high int) error {
	if n < low || n > high {
		return fmt.Errorf("-%s: %d: want %d to %d", name, n, low, high)
	}
	return nil
}

func (o *options) ipvsFlags(fs *flag.FlagSet) func() error {
	c, scheduler := &o.ipvs, ""
	fs.StringVar(&scheduler, "ipvs-scheduler", "wrr",
		"`NAME` of the scheduler of services that ask for none, such as lc or mh+port")
	fs.DurationVar(&c.DrainLimit, "ipvs-drain-limit", 0, "how long an endpoint that left keeps "+
		"its TCP connections at most; negative: not at all (default 15m)")
	fs.StringVar(&c.Device, "ipvs-device", "", "dummy device `NAME` that holds the addresses of "+
		"services; it is made if need be (default: none)")
	fs.BoolVar(&c.StrictARP, "ipvs-strict-arp", false,
		"do not answer ARP for the addresses that -ipvs-device holds")
	fs.BoolVar(&c.TakeOver, "ipvs-take-over", false,
		"virtual servers of others that are where those of a service must be become ours")
	fs.IntVar(&c.AffinityMask4, "ipvs-affinity-mask4", 0, "leading `BITS` of IPv4 addresses by "+
		"which clients share an endpoint, with session affinity (default: all)")
	fs.IntVar(&c.AffinityMask6, "ipvs-affinity-mask6", 0, "the same `BITS` of IPv6 addresses")
	t := &c.Timeouts
	fs.DurationVar(&t.TCP, "ipvs-tcp-timeout", 0,
		"how long idle TCP connections are kept, in whole seconds (default: as it is)")
	fs.DurationVar(&t.TCPFin, "ipvs-tcpfin-timeout", 0,
		"how long TCP connections are kept after a FIN (default: as it is)")
	fs.DurationVar(&t.UDP, "ipvs-udp-timeout", 0,
		"how long idle UDP flows are kept (default: as it is)")
	return func() (err error) {
		var errs []error
		if c.Scheduler, err = servicemodel.ParseScheduler(scheduler); err != nil {
			errs = append(errs, fmt.Errorf("-ipvs-scheduler: %q: %w", scheduler, err))
		} else if c.Scheduler == servicemodel.Random {
			errs = append(errs, errors.New("-ipvs-scheduler: random is not one of IPVS"))
		}
		if c.StrictARP && c.Device == "" {
			errs = append(errs, errors.New("-ipvs-strict-arp: it needs -ipvs-device"))
		}
		errs = append(errs, between("ipvs-affinity-mask4", c.AffinityMask4, 0, 32),
			between("ipvs-affinity-mask6", c.AffinityMask6, 0, 128),
			wholeSeconds("tcp", t.TCP), wholeSeconds("tcpfin", t.TCPFin),
			wholeSeconds("udp", t.UDP))
		return errors.Join(errs...)
	}
}

func wholeSeconds(name string, d time.Duration) error {
	if d < 0 || d%time.Second != 0 {
		return fmt.Errorf("-ipvs-%s-timeout: %v: want whole seconds", name, d)
	}
	return nil
}

func (o *options) nodeFlags(fs *flag.FlagSet) func() error {
	var ips, clusterCIDRs, serviceCIDRs list
	var nodePortAddresses string
	var bit uint
	n := &o.node
	fs.StringVar(&n.Name, "node", "", "`NAME` of this node (default: the host name)")
	fs.StringVar(&n.Zone, "zone", "", "`NAME` of this node's zone")
	fs.Var(&ips, "node-ip", "address `IP` of this node, the primary one of its family first; may "+
		"be repeated (default: those of the interfaces)")
	fs.Func("only-family", "the only address `FAMILY` that this node serves, IPv4 or IPv6 "+
		"(default: both)", func(s string) error { return n.OnlyFamily.UnmarshalText([]byte(s)) })
	fs.Var(&clusterCIDRs, "cluster-cidr", "`CIDR` that tells the traffic of pods; may be repeated")
	fs.StringVar(&nodePortAddresses, "nodeport-addresses", "", "where node ports answer: `LIST` "+
		"of CIDRs, separated by commas, or primary (default: all local addresses)")
	fs.Var(&serviceCIDRs, "service-cidr",
		"`CIDR` of cluster IPs, whose unused addresses are dropped; may be repeated")
	fs.BoolVar(&n.MasqueradeAll, "masquerade-all", false, "masquerade all traffic to cluster IPs")
	fs.UintVar(&bit, "masquerade-bit", defaultBit, "bit `N` of the packet mark, 0 to 31, that "+
		"asks for masquerading; the default is 14 with the chains of kube-proxy")
	return func() error {
		errs := []error{between("masquerade-bit", int(bit), 0, 31)}
		for _, s := range ips {
			a, err := netip.ParseAddr(s)
			if err != nil {
				errs = append(errs, fmt.Errorf("-node-ip: %q is not an IP address", s))
			}
			n.Addresses = append(n.Addresses, a)
		}
		n.LocalPods.CIDRs = prefixes("cluster-cidr", clusterCIDRs, &errs)
		n.ServiceCIDRs = prefixes("service-cidr", serviceCIDRs, &errs)
		switch nodePortAddresses {
		case "":
		case "primary":
			n.NodePortAddresses.Primary = true
		default:
			n.NodePortAddresses.CIDRs = prefixes("nodeport-addresses",
				strings.Split(nodePortAddresses, ","), &errs)
		}
		n.MasqueradeMark = 1 << (bit % 32)
		if n.Name == "" {
			name, err := os.Hostname()
			if err != nil {
				errs = append(errs, fmt.Errorf("-node: %w", err))
			}
			n.Name = strings.ToLower(name)
		}
		return errors.Join(errs...)
	}
}

func prefixes(name string, l []string, errs *[]error) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range l {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			*errs = append(*errs, fmt.Errorf("-%s: %q is not a CIDR", name, s))
			continue
		}
		out = append(out, p.Masked())
	}
	return out
}

// flowFlags defines the flags of commands that clean up flows.
func (o *options) flowFlags(fs *flag.FlagSet) func() error {
	policy := ""
	fs.BoolVar(&o.flow.keep, "keep-flows", false, "leave flows alone that the change made stale")
	fs.StringVar(&policy, "connections", "leave", "what becomes of connections to endpoints that "+
		"go, `POLICY`: leave, cut, or how long they are drained, such as 30s; apply waits for it")
	return func() (err error) {
		if o.flow.connections, err = servicemodel.ParseConnectionPolicy(policy); err != nil {
			return fmt.Errorf("-connections: %q: %w", policy, err)
		}
		return nil
	}
}

func (o *options) flowsFlags(fs *flag.FlagSet) func() error {
	fs.BoolVar(&o.flow.watch, "watch", false, "print what happens to flows, until interrupted")
	return nil
}

func (o *options) serviceFlag(fs *flag.FlagSet) func() error {
	fs.StringVar(&o.show.service, "service", "", "only the service `NAMESPACE/NAME`")
	return func() error {
		if s := o.show.service; s != "" && strings.Count(s, "/") != 1 {
			return fmt.Errorf("-service: %q: want namespace/name", s)
		}
		return nil
	}
}

func (o *options) tuneFlags(fs *flag.FlagSet) func() error {
	o.flow.tuning = tuning.KubeProxy()
	t := &o.flow.tuning
	fs.IntVar(&t.MaxPerCore, "conntrack-max-per-core", t.MaxPerCore,
		"flows that the table should hold for each CPU; 0 leaves its size alone")
	fs.IntVar(&t.Min, "conntrack-min", t.Min, "flows that it should hold at least")
	fs.DurationVar(&t.TCPEstablished, "conntrack-tcp-timeout-established", t.TCPEstablished,
		"how long idle TCP connections are remembered; 0 leaves it")
	fs.DurationVar(&t.TCPCloseWait, "conntrack-tcp-timeout-close-wait", t.TCPCloseWait,
		"the same for those that only the server closed")
	fs.DurationVar(&t.UDP, "conntrack-udp-timeout", 0,
		"how long UDP flows are remembered; 0 leaves it")
	fs.DurationVar(&t.UDPStream, "conntrack-udp-timeout-stream", 0,
		"the same for those that are answered; 0 leaves it")
	fs.BoolVar(&t.TCPBeLiberal, "conntrack-tcp-be-liberal", false,
		"let TCP packets outside the window pass")
	fs.BoolVar(&t.Lower, "lower", false, "lower what is higher, too")
	return nil
}
