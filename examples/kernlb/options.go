package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/instance"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// options are the flags.
type options struct {
	files    []string
	changes  string // apply: a plan to be applied in place of manifests
	backend  string
	instance string
	output   string
	goOn     bool // where a service is refused
	empty    bool // manifests without services remove all
	copies   string
	of       string // cleanup: of what other program
	planOnly bool   // tune, cleanup -of: print what would be done
	node     servicemodel.Node
	services int
	endpoint int
	flow     flowOptions
	trace    traceOptions
	show     showOptions
	count    countOptions
	object   string // that explain is about
	listen   listenOptions
	graph    graphOptions
	top      topOptions

	explained servicemodel.Name // explain: the service
	ipvs      ipvs.Config       // what flags say of it

	annotations string
	scheduler   string
}

// parse reads the command line and returns the command. Asked for help, it prints that.
func (o *options) parse(args []string, stdout io.Writer) (string, error) {
	fs := flag.NewFlagSet("kernlb", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	n := nodeFlags{}
	o.define(fs, &n)
	name, about, err := arguments(fs, args)
	if errors.Is(err, flag.ErrHelp) {
		printUsage(fs, stdout)
	}
	if err != nil {
		return "", err
	}
	needsFile := name == "apply" || name == "plan" || name == "watch"
	switch {
	case o.changes != "" && len(o.files) > 0:
		return "", errors.New("-changes: what was planned is applied without manifests (-f)")
	case needsFile && len(o.files) == 0 && o.changes == "":
		return "", fmt.Errorf("%s needs manifests: -f FILE", name)
	}
	if name == "cleanup" && o.of == "" && o.backend == auto {
		return "", fmt.Errorf("cleanup needs the -backend to clean up, not %s", auto)
	}
	if err := errors.Join(o.checkCleanup(name), o.checkTrace(name),
		o.show.check(o.flow.service, len(o.files) > 0), o.count.check(),
		o.checkExplain(name, about)); err != nil {
		return "", err
	}
	return name, errors.Join(n.apply(&o.node), o.check(), o.flow.check(), o.listen.check(),
		o.graph.check())
}

// checkCleanup checks the flags that cleanup alone has.
func (o *options) checkCleanup(command string) error {
	switch {
	case o.of != "" && o.of != ofKubeProxy:
		return fmt.Errorf("-of: %q: want %s", o.of, ofKubeProxy)
	case command == "cleanup" && o.planOnly && o.of == "":
		return errors.New("-plan is for tune, and for cleanup with -of")
	}
	return nil
}

// defaultBit is that of servicemodel.DefaultMasqueradeMark.
const defaultBit = 12

// nodeFlags are the flags that describe the node, as given.
type nodeFlags struct {
	ips, clusterCIDRs, serviceCIDRs list
	nodePortAddresses               string
	bit                             uint
}

// list is a flag that may be repeated.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func (o *options) define(fs *flag.FlagSet, n *nodeFlags) {
	fs.Var((*list)(&o.files), "f",
		"manifest `FILE`, YAML or JSON; a directory stands for the *.yaml, *.yml and *.json in "+
			"it; - is standard input; may be repeated")
	fs.StringVar(&o.backend, "backend", backendNames()[0],
		"`NAME` of the kernel mechanism: "+strings.Join(backendNames(), ", ")+
			"; auto takes the first that the kernel supports and that can do what the services "+
			"ask for")
	fs.StringVar(&o.instance, "instance", instance.Default,
		"owner `NAME` of the kernel objects; instances do not see each other")
	fs.StringVar(&o.output, "o", "text", "output `FORMAT`: text or json")
	o.defineApply(fs)
	fs.StringVar(&o.copies, "copies", "",
		"watch: `DIR` for the last whole version of each manifest, in case that one is broken "+
			"when the program starts again (default: one in $RUNTIME_DIRECTORY or /run/kernlb)")
	fs.StringVar(&o.of, "of", "",
		"cleanup: delete what another `PROGRAM` left, which must be "+ofKubeProxy+
			" (default: what the instance has)")
	fs.BoolVar(&o.planOnly, "plan", false,
		"tune, cleanup with -of: print what would be done, and change nothing")
	n.define(fs, &o.node)
	fs.IntVar(&o.services, "services", 10000, "bench: number `N` of services")
	fs.IntVar(&o.endpoint, "endpoints", 10, "bench: number `M` of endpoints of each service")
	fs.StringVar(&o.annotations, "annotations", "kernlb.io",
		"`PREFIX` of the annotations of services that ask for a scheduler, a forwarding method, "+
			"or what becomes of connections; empty: they mean nothing")
	o.defineIPVS(fs)
	o.flow.define(fs)
	o.trace.define(fs)
	o.show.define(fs)
	o.count.define(fs)
	fs.StringVar(&o.object, "object", "", "explain: which service wants the objects of the kernel "+
		"that have `TEXT` in what explain prints of them, such as the name of a chain")
	o.listen.define(fs)
	o.graph.define(fs)
	o.top.define(fs)
}

// define makes the flags that describe the node.
func (n *nodeFlags) define(fs *flag.FlagSet, node *servicemodel.Node) {
	fs.StringVar(&node.Name, "node", "", "`NAME` of this node (default: the host name)")
	fs.StringVar(&node.Zone, "zone", "", "`NAME` of this node's zone")
	fs.Var(&n.ips, "node-ip",
		"address `IP` of this node, the primary one of its family first; may be repeated "+
			"(default: those of the interfaces)")
	fs.Var(&n.clusterCIDRs, "cluster-cidr",
		"`CIDR` that tells the traffic of pods; may be repeated")
	fs.StringVar(&n.nodePortAddresses, "nodeport-addresses", "",
		"where node ports answer: `LIST` of CIDRs, separated by commas, or primary (default: all "+
			"local addresses)")
	fs.Var(&n.serviceCIDRs, "service-cidr",
		"`CIDR` of cluster IPs, whose unused addresses are dropped; may be repeated")
	fs.BoolVar(&node.MasqueradeAll, "masquerade-all", false,
		"masquerade all traffic to cluster IPs")
	fs.UintVar(&n.bit, "masquerade-bit", defaultBit,
		"bit `N` of the packet mark, 0 to 31, that asks for masquerading; the default is 14 with "+
			"the chains of kube-proxy")
}

// defineApply defines the flags that say what is applied.
func (o *options) defineApply(fs *flag.FlagSet) {
	fs.StringVar(&o.changes, "changes", "",
		"apply: `FILE` that plan -o json has printed; its changes are applied if the kernel holds "+
			"what it held then, and nothing else is")
	fs.BoolVar(&o.goOn, "keep-going", false,
		"apply and plan: leave out the services that are invalid "+
			"or that the backend refuses, and print each; the exit code is 1 if there were any "+
			"(default: they refuse the whole state)")
	fs.BoolVar(&o.empty, "allow-empty", false,
		"apply, plan and watch: if the manifests have no service, remove all that the kernel has "+
			"(default: that is an error, and watch waits for services)")
}

// defineIPVS defines the flags of the ipvs backend.
func (o *options) defineIPVS(fs *flag.FlagSet) {
	fs.StringVar(&o.scheduler, "ipvs-scheduler", "wrr",
		"ipvs: `NAME` of the scheduler of services that ask for none, such as lc or mh+port")
	fs.DurationVar(&o.ipvs.DrainLimit, "ipvs-drain-limit", 0,
		"ipvs: how long an endpoint that left keeps its TCP connections at most; negative: not at "+
			"all (default 15m)")
	fs.StringVar(&o.ipvs.Device, "ipvs-device", "",
		"ipvs: dummy device `NAME` that holds the addresses of services; it is made if need be "+
			"(default: none)")
	fs.BoolVar(&o.ipvs.StrictARP, "ipvs-strict-arp", false,
		"ipvs: do not answer ARP for the addresses that -ipvs-device holds")
	fs.BoolVar(&o.ipvs.TakeOver, "ipvs-take-over", false,
		"ipvs: virtual servers of others that are where those of a service must be become ours")
	fs.IntVar(&o.ipvs.AffinityMask4, "ipvs-affinity-mask4", 0,
		"ipvs: leading `BITS` of IPv4 addresses by which clients share an endpoint, with session "+
			"affinity (default: all)")
	fs.IntVar(&o.ipvs.AffinityMask6, "ipvs-affinity-mask6", 0,
		"ipvs: the same `BITS` of IPv6 addresses")
	t := &o.ipvs.Timeouts
	fs.DurationVar(&t.TCP, "ipvs-tcp-timeout", 0,
		"ipvs: how long idle TCP connections are kept, in whole seconds (default: as it is)")
	fs.DurationVar(&t.TCPFin, "ipvs-tcpfin-timeout", 0,
		"ipvs: how long TCP connections are kept after a FIN (default: as it is)")
	fs.DurationVar(&t.UDP, "ipvs-udp-timeout", 0,
		"ipvs: how long idle UDP flows are kept (default: as it is)")
}

// instanceName is what every backend can make names of its kernel objects from.
var instanceName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,57}$`)

// check checks the flags that are not the node's.
func (o *options) check() error {
	var errs []error
	if !slices.Contains(backendNames(), o.backend) {
		errs = append(errs, fmt.Errorf("-backend: %q: want one of %s", o.backend,
			strings.Join(backendNames(), ", ")))
	}
	if o.output != "text" && o.output != "json" {
		errs = append(errs, fmt.Errorf("-o: %q: want text or json", o.output))
	}
	if !instanceName.MatchString(o.instance) {
		errs = append(errs, fmt.Errorf("-instance: %q: want a letter, then letters, digits, "+
			"\"_\", \"-\" or \".\", 58 in all at most", o.instance))
	}
	if o.services < 1 || o.services > 1<<20 {
		errs = append(errs, fmt.Errorf("-services: %d: want 1 to %d", o.services, 1<<20))
	}
	if o.endpoint < 1 || o.endpoint > 1<<12 {
		errs = append(errs, fmt.Errorf("-endpoints: %d: want 1 to %d", o.endpoint, 1<<12))
	}
	return errors.Join(append(errs, o.checkIPVS())...)
}

// checkIPVS checks the flags of the ipvs backend.
func (o *options) checkIPVS() error {
	var errs []error
	var err error
	if o.ipvs.Scheduler, err = servicemodel.ParseScheduler(o.scheduler); err != nil {
		errs = append(errs, fmt.Errorf("-ipvs-scheduler: %q: %w", o.scheduler, err))
	} else if o.ipvs.Scheduler == servicemodel.Random {
		errs = append(errs, errors.New("-ipvs-scheduler: random is not one of IPVS"))
	}
	if o.ipvs.StrictARP && o.ipvs.Device == "" {
		errs = append(errs, errors.New("-ipvs-strict-arp: it needs -ipvs-device"))
	}
	for _, m := range []struct {
		family, bits, max int
	}{{4, o.ipvs.AffinityMask4, 32}, {6, o.ipvs.AffinityMask6, 128}} {
		if m.bits < 0 || m.bits > m.max {
			errs = append(errs, fmt.Errorf("-ipvs-affinity-mask%d: %d: want 1 to %d", m.family,
				m.bits, m.max))
		}
	}
	return errors.Join(append(errs, o.checkTimeouts()...)...)
}

// checkTimeouts checks the flags of the timeouts of IPVS.
func (o *options) checkTimeouts() (errs []error) {
	t := &o.ipvs.Timeouts
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{"tcp", t.TCP}, {"tcpfin", t.TCPFin}, {"udp", t.UDP}} {
		if f.value < 0 || f.value%time.Second != 0 {
			errs = append(errs, fmt.Errorf("-ipvs-%s-timeout: %v: want whole seconds", f.name,
				f.value))
		}
	}
	return errs
}

// apply makes the node of the flags.
func (n *nodeFlags) apply(node *servicemodel.Node) error {
	var errs []error
	for _, s := range n.ips {
		a, err := netip.ParseAddr(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("-node-ip: %q is not an IP address", s))
		}
		node.Addresses = append(node.Addresses, a)
	}
	node.LocalPods.CIDRs = prefixes("cluster-cidr", n.clusterCIDRs, &errs)
	node.ServiceCIDRs = prefixes("service-cidr", n.serviceCIDRs, &errs)
	switch n.nodePortAddresses {
	case "":
	case "primary":
		node.NodePortAddresses.Primary = true
	default:
		node.NodePortAddresses.CIDRs = prefixes("nodeport-addresses",
			strings.Split(n.nodePortAddresses, ","), &errs)
	}
	if n.bit > 31 {
		errs = append(errs, fmt.Errorf("-masquerade-bit: %d: want 0 to 31", n.bit))
	}
	node.MasqueradeMark = 1 << (n.bit % 32)
	if node.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			errs = append(errs, fmt.Errorf("-node: %w", err))
		}
		node.Name = strings.ToLower(name)
	}
	return errors.Join(errs...)
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
