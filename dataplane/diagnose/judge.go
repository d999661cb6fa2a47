package diagnose

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/servicemodel"
)

// judgeModel judges what the tables decide about the packet. pod says that the client has its own
// network namespace.
func (c *Config) judgeModel(p servicemodel.Packet, pod bool) (servicemodel.Decision, *Fault) {
	d := c.Table.Decide(p, c.Here)
	var want servicemodel.Decision
	if c.Wanted != nil {
		want = c.Wanted.Decide(p, c.Here)
	}
	switch {
	case c.Wanted != nil && (want.Outcome != d.Outcome ||
		!slices.Equal(want.Candidates, d.Candidates)):
		return d, &Fault{NotProgrammed, fmt.Sprintf("the kernel does not match the desired state: "+
			"a connection is %v, and should be %v", brief(d), brief(want)),
			"kernlb status and its log say why; kernlb show -diff -f shows the difference"}
	case d.Frontend == nil && d.Outcome == servicemodel.Untouched:
		return d, &Fault{NoService, fmt.Sprintf("no service answers at %v: the packet goes where "+
			"routes lead", p.Dst), "kernlb show lists the services, and other instances: -instance"}
	case d.Outcome == servicemodel.Balanced:
		return d, nil
	case pod && d.Origin == servicemodel.FromOutside && c.podsNamed(p.Src.Addr()):
		return d, &Fault{WrongPods, fmt.Sprintf("the client is a pod of this node, and %v is in "+
			"no range of pods %v: it counts as a client from outside, and is %v", p.Src.Addr(),
			c.Table.Rules().LocalPods.CIDRs, brief(d)),
			"give -cluster-cidr the network of the pods"}
	}

	why := d.Cause.String()
	if want.Cause.Kind != "" {
		why = want.Cause.String()
	}
	if why == "" {
		why = d.Reason
	}
	return d, &Fault{Refused, fmt.Sprintf("the connection is %v: %s", brief(d), why),
		doRefused(&d, &want.Cause, &d.Cause)}
}

// doRefused says what to do about a service that refuses connections, for the first cause that says
// more than "unknown".
func doRefused(d *servicemodel.Decision, causes ...*servicemodel.Cause) string {
	if d.Frontend == nil {
		return "kernlb show lists the services"
	}
	name := d.Frontend.Service.Name
	do := ""
	for _, c := range causes {
		do = cmp.Or(do, doCause(c, name, d.Frontend))
	}
	if do != "" {
		do += "; "
	}
	return do + fmt.Sprintf("kernlb explain %v, with the same flags -f and -node, shows how each "+
		"endpoint is used", name)
}

// doCause says what to do about a cause, or nothing.
func doCause(c *servicemodel.Cause, name servicemodel.Name, f *servicemodel.Frontend) string {
	switch c.Kind {
	case "source":
		return fmt.Sprintf("add %v to loadBalancerSourceRanges of %v, or connect from %s", c.Source,
			name, some(c.Others))
	case "no-endpoints":
		if len(c.Others) > 0 {
			return fmt.Sprintf("set the label kubernetes.io/service-name of the EndpointSlice to "+
				"%q", name.Name)
		}
		return fmt.Sprintf("no EndpointSlice of the namespace %s with endpoints has the label "+
			"kubernetes.io/service-name: %s: see whether the service's selector selects pods",
			name.Namespace, name.Name)
	case "no-family":
		return fmt.Sprintf("give the pods addresses of %v, or connect to an address of the other "+
			"family", f.Key.Family())
	case "no-port":
		return fmt.Sprintf("name the port of the EndpointSlice as the service's: %q",
			f.Service.Port)
	case "not-ready":
		return "see why the readiness of the pods fails (kubectl describe pod)"
	case "not-local":
		return fmt.Sprintf("connect through a node that has an endpoint, or set %s to Cluster",
			c.Policy)
	}

	return ""
}

// others notes what the tables decide about the other addresses of a service port, which get no
// packets, and about clients from outside.
func (r *Report) others(c *Config, p servicemodel.Packet, pod bool,
	asked *servicemodel.Decision) {
	table := cmp.Or(c.Wanted, c.Table)
	var rest []string
	for _, f := range table.FrontendsOfService(asked.Frontend.Service.Name) {
		here, family := f.Key == asked.Frontend.Key, f.Key.Family()
		if f.Service != asked.Frontend.Service || here && asked.Outcome != servicemodel.Balanced ||
			family != servicemodel.FamilyOf(p.Src.Addr()) {
			continue
		}

		var fault *Fault
		if !f.Key.NodePort() && !here {
			p.Dst = netip.AddrPortFrom(f.Key.Addr, f.Key.Port)
			_, fault = c.judgeModel(p, pod)
		}

		switch cause := table.Cause(f); {
		case cause.Kind != "":
			r.note("at %v clients from outside are refused: %v", f.Key, cause)
		case fault != nil && fault.Kind == Refused && asked.Origin == servicemodel.FromOutside:
			fault.Says = fmt.Sprintf("at %v: %s", f.Key, fault.Says)
			r.add(fault)
		case fault != nil:
			r.note("at %v: %s", f.Key, fault.Says)
		case !here:
			rest = append(rest, f.Key.String())
		}
	}

	if len(rest) > 0 {
		r.note("not asked: %s", strings.Join(rest, ", "))
	}
}

// judgeDrift puts changed objects of kernlb before a fault that they may cause.
func (r *Report) judgeDrift(drift []string) {
	if len(drift) == 0 {
		return
	}
	says := "kernlb's objects in the kernel were changed: " + drift[0]
	if n := len(drift) - 1; n > 0 {
		says += fmt.Sprintf(", and %d more", n)
	}
	if r.Fault == nil || !slices.Contains([]Kind{NoService, Refused, OwnRule, Routing,
		NotMasqueraded, Hairpin, Elsewhere, ClientRoute}, r.Fault.Kind) {
		r.note("%s", says)
		return
	}

	r.More = slices.Insert(r.More, 0, *r.Fault)
	r.Fault = &Fault{NotProgrammed, says, "kernlb apply repairs it, and so does kernlb watch"}
}

// podsNamed reports whether the node knows pods of the family of an address.
func (c *Config) podsNamed(a netip.Addr) bool {
	return slices.ContainsFunc(c.Table.Rules().LocalPods.CIDRs, func(p netip.Prefix) bool {
		return p.Addr().Is4() == a.Is4()
	})
}

// brief says what happens to a packet.
func brief(d servicemodel.Decision) string {
	if d.Outcome == servicemodel.Balanced {
		return fmt.Sprintf("balanced over %d endpoints", len(d.Candidates))
	}
	return string(d.Outcome)
}

// judgeTrace judges the path of a packet and of its answer. nil means that the endpoint answered,
// or that only the endpoint is at fault.
func (c *Config) judgeTrace(t *livetrace.Trace, d servicemodel.Decision) *Fault {
	if f := c.judgeWay(t, ForeignRule, "the packet"); f != nil {
		return f
	}
	i := slices.IndexFunc(d.Candidates, func(e servicemodel.Candidate) bool {
		return e.Endpoint == t.Last.Dst
	})
	client, last := t.Packet.Src.Addr(), t.Last.Src.Addr()
	// A packet of the node may keep its source, which is an address of the node already.
	kept := last == client && (d.Origin != servicemodel.FromHost || client.IsLoopback())
	switch {
	case i < 0:
		return &Fault{Elsewhere, fmt.Sprintf("the packet goes to %v, which is no endpoint of the "+
			"service", t.Last.Dst), "kernlb show -diff -f; another program may translate packets"}
	case d.Candidates[i].Masquerade && kept && t.Last.Dst.Addr() == client:
		return &Fault{Hairpin, fmt.Sprintf("the packet comes back to the pod that sent it with "+
			"the pod's own source, %v, and the pod drops it: nothing masquerades it", client),
			doMasquerade}
	case d.Candidates[i].Masquerade && kept:
		return &Fault{NotMasqueraded, fmt.Sprintf("the source %v of the packet to %v was to be "+
			"replaced by the node's, and is not: the answer may not come back through this node",
			client, t.Last.Dst), doMasquerade}
	case t.Answer != nil:
		return c.judgeWay(t.Answer, AnswerLost, "the answer of "+t.Last.Dst.String())
	}

	return nil
}

const doMasquerade = "kernlb show -diff -f says whether its own rules are there; another program " +
	"may translate the source, or clear the mark: kernlb trace -live lists all rules of a packet"

// judgeWay judges the place where a packet was lost. kind is the kind of fault if another program
// or routing lost the packet.
func (c *Config) judgeWay(t *livetrace.Trace, kind Kind, what string) *Fault {
	switch {
	case t.By != nil && c.Ours != nil && c.Ours(*t.By):
		return &Fault{OwnRule, fmt.Sprintf("kernlb's rule drops %s: %v", what, *t.By),
			"kernlb show -diff -f; kernlb trace says what the rule is for"}
	case t.By != nil:
		return &Fault{kind, fmt.Sprintf("another program %s %s at the hook %s: %v%s", verb(t.Fate),
			what, t.Hook, *t.By, ruleText(*t.By)), doRule(*t.By)}
	case t.Fate == livetrace.Delivered || t.Fate == livetrace.Sent:
		return nil
	case t.Full != "":
		return &Fault{ConntrackFull, fmt.Sprintf("the table of connections is full (%s): the "+
			"kernel drops new connections", t.Full), t.Do}
	case t.Within:
		return &Fault{kind, fmt.Sprintf("%s is lost in the hook %s, by something that is no rule "+
			"of nf_tables: iptables-legacy, IPVS, or a program of BPF", what, t.Hook),
			"iptables-legacy-save, bpftool prog"}
	case kind == AnswerLost:
		return &Fault{kind, fmt.Sprintf("%s is lost at the routing decision: %s", what,
			routing(t)), doRouting(t)}
	}

	return &Fault{Routing, fmt.Sprintf("the kernel does not forward %s after %s: %s", what, t.Hook,
		routing(t)), doRouting(t)}
}

func verb(f livetrace.Fate) string {
	if f == livetrace.Refused {
		return "refuses"
	}
	return "drops"
}

// doRule says what to do about a rule or a policy of another program.
func doRule(r livetrace.Rule) string {
	if r.Handle == 0 {
		return "accept services in this chain"
	}
	return fmt.Sprintf("nft delete rule %s %s %s handle %d, or except services from it", r.Family,
		r.Table, r.Chain, r.Handle)
}

func ruleText(r livetrace.Rule) string {
	if r.Text == "" {
		return ""
	}
	return ": " + r.Text
}

func routing(t *livetrace.Trace) string {
	if t.Routing != "" {
		return t.Routing
	}
	return fmt.Sprintf("there is a route to %v, so the size, the TTL or a program of BPF may be "+
		"the cause", t.Last.Dst.Addr())
}

// doRouting says what to do about the reason of [livetrace.Trace.Routing].
func doRouting(t *livetrace.Trace) string {
	if t.Do != "" {
		return t.Do
	}
	return "ip route get " + t.Last.Dst.Addr().String() + " from " + t.Last.Src.Addr().String() +
		" iif " + t.In
}

// link is what the node knows about the link-layer address of a next hop, with the machines that
// claim it.
type link struct {
	name    string
	hop     netip.Addr
	known   net.HardwareAddr // in the table of neighbours; nil if it is not there
	failed  bool
	asked   bool               // ARP was asked
	answers []net.HardwareAddr // of different machines
}

// duplicate judges whether several machines have the address.
func (l *link) duplicate() *Fault {
	if len(l.answers) < 2 {
		return nil
	}
	return &Fault{Duplicate, fmt.Sprintf("%d machines have the address %v on %s: %s. Packets go "+
		"to the one that answered last", len(l.answers), l.hop, l.name, macs(l.answers)),
		"find the pods with this address; the CNI plugin gave it twice"}
}

// neighbour judges the table of neighbours.
func (l *link) neighbour(to netip.Addr) *Fault {
	who := fmt.Sprint("the endpoint ", to)
	if l.hop != to {
		who = fmt.Sprintf("the next hop %v to %v", l.hop, to)
	}
	switch {
	case l.asked && len(l.answers) == 1 && len(l.known) > 0 &&
		!slices.Equal(l.answers[0], l.known):
		return &Fault{Neighbour, fmt.Sprintf("the table of neighbours has the link-layer address "+
			"%v for %s on %s, and %v answers: packets go to a machine that is gone", l.known, who,
			l.name, l.answers[0]), fmt.Sprintf("ip neigh del %v dev %s", l.hop, l.name)}
	case l.failed || l.asked && len(l.answers) == 0 && len(l.known) == 0:
		return &Fault{Neighbour, fmt.Sprintf("nothing answers for %s on %s: the node does not "+
			"know its link-layer address", who, l.name),
			"see whether the pod runs and its link is up"}
	}

	return nil
}

func macs(l []net.HardwareAddr) string {
	var s []string
	for _, a := range l {
		s = append(s, a.String())
	}
	return strings.Join(s, " and ")
}
