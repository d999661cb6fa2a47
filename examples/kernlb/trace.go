package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// traceOptions are the flags of trace.
type traceOptions struct {
	from, to   string
	packet     servicemodel.Packet
	live, send bool
	wait       time.Duration
	endpoint   netip.AddrPort // -live: follow only packets to it; -send: send them there
	count      int            // -live: how many packets; 0: one, or any number with untilLost
	untilLost  bool
}

// clientPort is the source port of traced packets. Only the schedulers sh+port and mh+port depend
// on it.
const clientPort = 40000

func traceFlags(o *options, fs *flag.FlagSet) {
	t := &o.trace
	fs.Func("from", "where the packet comes from, `IP` or IP%LINK, the link being the one that it "+
		"comes in by; an address of this node stands for the node itself, unless there is a link",
		func(s string) error {
			from, link, _ := strings.Cut(s, "%")
			src, err := parseIP(from)
			t.from, t.packet.InInterface = s, link
			t.packet.Src = netip.AddrPortFrom(src, clientPort)
			return err
		})

	fs.Func("to", "where it goes, `IP:PORT/PROTOCOL`, such as 10.96.0.10:80/tcp",
		func(s string) error {
			var to servicemodel.FrontendKey
			err := to.UnmarshalText([]byte(s))
			if err != nil || to.NodePort() || !to.Protocol.Valid() {
				return errors.New("want IP:PORT/PROTOCOL, such as 10.96.0.10:80/tcp")
			}
			t.to, t.packet.Protocol = s, to.Protocol
			t.packet.Dst = netip.AddrPortFrom(to.Addr.Unmap().WithZone(""), to.Port)
			return nil
		})

	fs.BoolVar(&t.live, "live", false, "follow the next such packet through the kernel, and "+
		"name the rules that it meets, other programs', too (needs Linux 5.10)")
	fs.BoolVar(&t.send, "send", false, "as -live, and send the packet: -from is an address "+
		"of this node")
	fs.TextVar(&t.endpoint, "endpoint", netip.AddrPort{}, "-live: leave out packets that do not "+
		"go to this endpoint, `IP:PORT`; -send: send the packets there, whatever the scheduler "+
		"chooses")
	number(fs, &t.count, "count", 1, 1000,
		"-live, -send: follow `N` packets, and sum up by endpoint")
	fs.BoolVar(&t.untilLost, "until-lost", false, "-live, -send: follow packets until one is "+
		"lost or refused, -count at most, and sum up by endpoint")
	fs.DurationVar(&t.wait, "wait", 0, "how long -live waits for each packet (default: until it "+
		"is interrupted)")
}

func checkTrace(o *options) error {
	t := &o.trace
	t.live = t.live || t.send
	switch {
	case t.from == "" || t.to == "":
		return errors.New("trace needs -from IP and -to IP:PORT/PROTOCOL")
	case t.packet.Src.Addr().Is4() != t.packet.Dst.Addr().Is4():
		return fmt.Errorf("-from and -to: %s and %s are of different families", t.from, t.to)
	case t.wait < 0:
		return errors.New("-wait cannot be negative")
	case t.wait != 0 && t.send:
		return errors.New("-wait cannot be combined with -send, which waits for no packet")
	case !t.live && (t.wait != 0 || t.count != 0 || t.untilLost || t.endpoint.IsValid()):
		return errors.New("-wait, -count, -until-lost and -endpoint need -live or -send")
	case t.endpoint.IsValid() && t.endpoint.Addr().Is4() != t.packet.Dst.Addr().Is4():
		return fmt.Errorf("-endpoint and -to: %v and %s are of different families", t.endpoint,
			t.to)
	case t.send && t.packet.Protocol == servicemodel.SCTP:
		return errors.New("-send cannot send SCTP: use -live, and send it by other means")
	case t.send && t.packet.InInterface != "":
		return errors.New("-send cannot be combined with a link: packets of this node have none")
	}

	return nil
}

// tracedPacket is a trace in the JSON output of trace.
type tracedPacket struct {
	Outcome string              `json:"outcome"`
	Cause   string              `json:"cause,omitempty"`
	Steps   []servicemodel.Step `json:"steps"`
}

func newTracedPacket(t servicemodel.Trace) *tracedPacket {
	return &tracedPacket{string(t.Decision.Outcome), t.Decision.Cause.String(), t.Steps}
}

// trace says what happens to a packet, according to manifests or to the kernel.
func (p *program) trace(ctx context.Context) error {
	status, err := p.traced(ctx)
	if err != nil {
		return err
	}
	table := status.Held
	here, err := p.locality()
	if err != nil {
		return err
	}
	packet := p.opts.trace.packet
	packet.FromThisNode = packet.InInterface == "" && here.Local(packet.Src.Addr())
	if p.opts.trace.live {
		return p.traceLive(ctx, table, packet, here)
	}
	t := status.Trace(packet, here)
	silence.Explain(&t, p.silent(ctx, table), time.Now())
	p.explainChoice(table, &t)
	p.notePods(table, packet.Src.Addr(), t)
	return p.print(newTracedPacket(t), t.String())
}

// traced returns the table that trace follows: the kernel's, or with manifests the table that the
// kernel would have for them, without endpoints that the running program took out and services that
// the backend refuses.
func (p *program) traced(ctx context.Context) (s dataplane.Status, err error) {
	if len(p.opts.files) == 0 {
		s.Held, err = p.tableOf(ctx)
		return s, err
	}
	if s.State, err = p.read(); err != nil {
		return s, err
	}
	s.State = silence.Without(s.State, p.allSilent(ctx))
	if s.Held, err = servicemodel.Resolve(nil, s.State); err != nil {
		return s, p.invalid(err)
	}
	check := map[string]func(*servicemodel.ChangeSet) error{nftables.Name: nftables.Check,
		iptables.Name: iptables.Check, ipvs.Name: ipvs.Check}[p.opts.backend]
	if check == nil {
		return s, nil
	}
	rest := s.State
	for _, problem := range dataplane.Problems(check(servicemodel.Diff(nil, s.Held))) {
		s.Refused = append(s.Refused,
			dataplane.Refusal{Service: problem.Service, Err: problem.Err})
		rest = rest.WithoutService(problem.Service)
	}
	s.Held, err = servicemodel.Resolve(nil, rest)
	return s, err
}

// explainChoice adds the endpoint that a scheduler chooses, if the backend can tell.
func (p *program) explainChoice(table *servicemodel.Table, t *servicemodel.Trace) {
	chooser := map[string]func(*servicemodel.Pool) func(netip.AddrPort) (slot int){
		nftables.Name: nftables.Chooser, iptables.Name: iptables.Chooser}[p.opts.backend]
	id, balanced := t.Decision.Pool()
	if chooser == nil || !balanced {
		return
	}
	pool := table.Pool(id)
	choose := chooser(pool)
	if choose == nil {
		return
	}
	chosen := servicemodel.TargetText(pool.Slots[choose(t.Packet.Src)].Endpoint)
	text := fmt.Sprintf("%s: a hash of %v chooses %s", pool.Scheduler, t.Packet.Src.Addr(), chosen)
	if _, port, _ := pool.Scheduler.Split(); port {
		text = fmt.Sprintf("%s: a hash of the client's address and port chooses, for port %d %s",
			pool.Scheduler, t.Packet.Src.Port(), chosen)
	}

	last := len(t.Steps) - 1 // the outcome
	t.Steps = slices.Insert(t.Steps, last, servicemodel.Step{Kind: "scheduler", Text: text})
}

// notePods says how to name the network of pods, if the client counts as outside only because the
// network is not named.
func (p *program) notePods(table *servicemodel.Table, src netip.Addr, t servicemodel.Trace) {
	pods := table.Rules().LocalPods
	named := pods.InterfacePrefix != "" || pods.Bridge != "" ||
		slices.ContainsFunc(pods.CIDRs, func(c netip.Prefix) bool {
			return c.Addr().Is4() == src.Is4()
		})

	// Programs of other names do not have the flags of kernlb.
	others := slices.ContainsFunc(instance.Programs(), func(known instance.Program) bool {
		return known.Instance == p.opts.instance && known.Instance != instance.Default
	})
	if t.Decision.Origin == servicemodel.FromOutside && !named && !others {
		p.warn("note: no network of pods is known, so clients that are pods count as outside: " +
			"give apply or watch (or trace -f) -cluster-cidr CIDR")
	}
}

// locality returns the addresses of the node: from the flags, or from all interfaces.
func (p *program) locality() (servicemodel.Locality, error) {
	if len(p.opts.node.Addresses) > 0 {
		return p.opts.node.Addresses, nil
	}
	return instance.Locality()
}

// owns reports whether a rule belongs to the instance, in any backend.
func (o *options) owns(r livetrace.Rule) bool {
	return (r.Family == "ip" || r.Family == "ip6") && instance.Owns(o.instance)(r.Table, r.Chain)
}
