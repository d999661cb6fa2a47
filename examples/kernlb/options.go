package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/conntrack/tuning"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// options are the flags of all commands. Each command defines its own, and checks what several
// flags mean together.
type options struct {
	files       []string
	annotations string
	changes     string // apply: file of a plan, instead of manifests
	backend     string
	instance    string
	output      string
	goOn        bool   // leave out refused services
	status      string // address of a running program
	strict      bool   // watch: a refused service refuses the whole state
	empty       bool   // manifests without services remove all
	copies      string
	listen      netip.AddrPort // watch: address of the page
	socket      string         // watch: a Unix socket of the page instead
	anywhere    bool           // watch: other machines may read the page
	ejects      bool           // watch: silent endpoints are taken out
	of          string         // cleanup: the other program
	planOnly    bool           // tune, cleanup -of: print only the plan
	node        servicemodel.Node
	ipvs        ipvs.Config
	flow        flowOptions
	trace       traceOptions
	diagnose    diagnoseOptions
	show        showOptions
	count       countOptions
	graph       graphOptions
	top         topOptions

	object    string            // explain: text of an object
	about     string            // explain, diagnose: the service, as the user gave it
	explained servicemodel.Name // and parsed
}

// flowOptions are the flags about flows.
type flowOptions struct {
	keep        bool
	connections servicemodel.ConnectionPolicy
	watch       bool
	tuning      tuning.Config
}

// parsed defines a flag whose text is parsed.
func parsed[T any](fs *flag.FlagSet, to *T, name, usage string, parse func(string) (T, error)) {
	fs.Func(name, usage, func(s string) (err error) {
		*to, err = parse(s)
		return err
	})
}

// text defines a flag with a check; wanted completes the error "want …".
func text(fs *flag.FlagSet, to *string, name, usage, wanted string, is func(string) bool) {
	parsed(fs, to, name, usage, func(s string) (string, error) {
		if !is(s) {
			return *to, errors.New("want " + wanted)
		}
		return s, nil
	})
}

// choice defines a flag with one of several values. The first is the default.
func choice(fs *flag.FlagSet, to *string, name, usage string, values ...string) {
	*to = values[0]
	text(fs, to, name, usage+" (default "+values[0]+")", "one of "+strings.Join(values, ", "),
		func(s string) bool { return slices.Contains(values, s) })
}

// number defines a flag with a number from low to high. The present value is the default.
func number(fs *flag.FlagSet, to *int, name string, low, high int, usage string) {
	if *to != 0 {
		usage += fmt.Sprintf(" (default %d)", *to)
	}
	parsed(fs, to, name, usage, func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return *to, fmt.Errorf("want %d to %d", low, high)
		}
		return n, nil
	})
}

// parseIP parses an IP address.
func parseIP(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, errors.New("want an IP address")
	}
	return a.Unmap(), nil
}

// addCIDRs adds CIDRs, separated by commas, to a list.
func addCIDRs(to *[]netip.Prefix, s string) error {
	for text := range strings.SplitSeq(s, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("%q is not a CIDR", text)
		}
		*to = append(*to, p.Masked())
	}

	return nil
}

func inputFlags(o *options, fs *flag.FlagSet) {
	fs.Func("f", "manifest `FILE`, YAML or JSON, for watch a directory; a directory stands for "+
		"the *.yaml, *.yml and *.json in it; for other commands, - is standard input, and the "+
		"flag may be repeated", func(s string) error {
		o.files = append(o.files, s)
		return nil
	})

	fs.StringVar(&o.annotations, "annotations", "kernlb.io",
		"`PREFIX` of the annotations of services that ask for a scheduler, a forwarding method, "+
			"or what becomes of connections; empty: they mean nothing")
}

// checkInput checks that there are manifests or a plan to apply.
func checkInput(o *options) error {
	switch {
	case o.changes != "" && len(o.files) > 0:
		return errors.New("-changes: what was planned is applied without manifests (-f)")
	case len(o.files) == 0 && o.changes == "":
		return errors.New("there are no manifests: -f FILE")
	}

	return nil
}

func outputFlag(o *options, fs *flag.FlagSet) {
	choice(fs, &o.output, "o", "output `FORMAT`: text or json", "text", "json")
}

// instanceName matches names from which every backend can make names of kernel objects.
var instanceName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,57}$`)

func kernelFlags(o *options, fs *flag.FlagSet) {
	choice(fs, &o.backend, "backend", "`NAME` of the kernel mechanism: "+
		strings.Join(backendNames, ", ")+"; auto takes the first that the kernel supports and "+
		"that can do what the services ask for", backendNames...)
	o.instance = instance.Default
	text(fs, &o.instance, "instance", "owner `NAME` of the kernel objects; instances do not see "+
		"each other (default "+instance.Default+")", `a letter, then letters, digits, "_", "-" `+
		`or ".", 58 in all at most`, instanceName.MatchString)
}

func goOnFlag(o *options, fs *flag.FlagSet) {
	fs.BoolVar(&o.goOn, "keep-going", false,
		"leave out the services that are invalid or that the backend refuses, and print each; "+
			"the exit code is 1 if there were any (default: they refuse the whole state)")
}

func emptyFlag(o *options, fs *flag.FlagSet) {
	fs.BoolVar(&o.empty, "allow-empty", false,
		"if the manifests have no service, remove all that the kernel has (default: that is an "+
			"error, and watch waits for services)")
}

func planFlag(o *options, fs *flag.FlagSet) {
	fs.BoolVar(&o.planOnly, "plan", false, "print what would be done, and change nothing")
}

func ipvsFlags(o *options, fs *flag.FlagSet) {
	c := &o.ipvs
	c.Scheduler = servicemodel.WeightedRR
	parsed(fs, &c.Scheduler, "ipvs-scheduler", "`NAME` of the scheduler of services that ask "+
		"for none, such as lc or mh+port (default wrr)", func(s string) (servicemodel.Scheduler,
		error) {
		if s == string(servicemodel.Random) {
			return "", errors.New("it is not one of IPVS")
		}
		return servicemodel.ParseScheduler(s)
	})

	fs.DurationVar(&c.DrainLimit, "ipvs-drain-limit", 0, "how long an endpoint that left keeps "+
		"its TCP connections at most; negative: not at all (default 15m)")
	fs.StringVar(&c.Device, "ipvs-device", "", "dummy device `NAME` that holds the addresses of "+
		"services; it is made if need be (default: none)")
	fs.BoolVar(&c.StrictARP, "ipvs-strict-arp", false,
		"do not answer ARP for the addresses that -ipvs-device holds")
	fs.BoolVar(&c.TakeOver, "ipvs-take-over", false,
		"virtual servers of others that are where those of a service must be become ours")
	number(fs, &c.AffinityMask4, "ipvs-affinity-mask4", 0, 32, "clients with these leading "+
		"`BITS` of IPv4 share an endpoint, with session affinity (default: all)")
	number(fs, &c.AffinityMask6, "ipvs-affinity-mask6", 0, 128, "the same `BITS` of IPv6 addresses")
	parsed(fs, &c.Timeouts.TCP, "ipvs-tcp-timeout", "how `LONG` idle TCP connections are kept, in "+
		"whole seconds (default: as it is)", parseSeconds)
	parsed(fs, &c.Timeouts.TCPFin, "ipvs-tcpfin-timeout", "how `LONG` TCP connections are kept "+
		"after a FIN (default: as it is)", parseSeconds)
	parsed(fs, &c.Timeouts.UDP, "ipvs-udp-timeout", "how `LONG` idle UDP flows are kept "+
		"(default: as it is)", parseSeconds)
}

func parseSeconds(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d%time.Second != 0 {
		return 0, errors.New("want whole seconds")
	}
	return d, nil
}

func nodeFlags(o *options, fs *flag.FlagSet) {
	n := &o.node
	host, _ := os.Hostname() // uname(2) does not fail
	n.Name = strings.ToLower(host)
	fs.Func("node", "`NAME` of this node (default: the host name)", func(s string) error {
		n.Name = cmp.Or(s, n.Name)
		return nil
	})

	fs.StringVar(&n.Zone, "zone", "", "`NAME` of this node's zone")
	fs.Func("node-ip", "address `IP` of this node, the primary one of its family first; may "+
		"be repeated (default: those of the interfaces)", func(s string) error {
		a, err := parseIP(s)
		n.Addresses = append(n.Addresses, a)
		return err
	})

	fs.Func("only-family", "the only address `FAMILY` that this node serves, IPv4 or IPv6 "+
		"(default: both)", func(s string) error { return n.OnlyFamily.UnmarshalText([]byte(s)) })
	fs.Func("cluster-cidr", "`CIDR` that tells the traffic of pods; may be repeated",
		func(s string) error { return addCIDRs(&n.LocalPods.CIDRs, s) })
	fs.Func("nodeport-addresses", "where node ports answer: `LIST` of CIDRs, separated by commas, "+
		"or primary (default: all local addresses)", func(s string) error {
		if s == "primary" {
			n.NodePortAddresses.Primary = true
			return nil
		}

		return addCIDRs(&n.NodePortAddresses.CIDRs, s)
	})

	fs.Func("service-cidr",
		"`CIDR` of cluster IPs, whose unused addresses are dropped; may be repeated",
		func(s string) error { return addCIDRs(&n.ServiceCIDRs, s) })
	fs.BoolVar(&n.MasqueradeAll, "masquerade-all", false, "masquerade all traffic to cluster IPs")
	n.MasqueradeMark = servicemodel.DefaultMasqueradeMark
	fs.Func("masquerade-bit", "bit `N` of the packet mark, 0 to 31, that asks for masquerading "+
		"(default 12, with the chains of kube-proxy 14)", func(s string) error {
		bit, err := strconv.ParseUint(s, 10, 5)
		n.MasqueradeMark = 1 << bit
		return err
	})
}

// flowFlags defines the flags of commands that clean up flows.
func flowFlags(o *options, fs *flag.FlagSet) {
	o.flow.connections.Mode = servicemodel.LeaveConnections
	fs.BoolVar(&o.flow.keep, "keep-flows", false, "do not delete flows made stale by the change")
	parsed(fs, &o.flow.connections, "connections", "how to treat connections to removed "+
		"endpoints, `POLICY`: leave, cut, or for how long to drain them, such as 30s; apply waits "+
		"(default leave)", servicemodel.ParseConnectionPolicy)
}

func serviceFlag(o *options, fs *flag.FlagSet) {
	text(fs, &o.show.service, "service", "only the service `NAMESPACE/NAME`", "NAMESPACE/NAME",
		func(s string) bool { return strings.Count(s, "/") == 1 })
}
