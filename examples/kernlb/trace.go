package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/examples/internal/instance"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// traceOptions are the flags of trace.
type traceOptions struct {
	from, to string
	packet   servicemodel.Packet
	live     liveOptions
}

// clientPort is the source port of traced packets. Only the schedulers sh+port and mh+port depend
// on it.
const clientPort = 40000

func (o *options) traceFlags(fs *flag.FlagSet) func() error {
	t := &o.trace
	fs.StringVar(&t.from, "from", "", "where the packet comes from, `IP` or IP%LINK, the link "+
		"being the one that it comes in by; an address of this node stands for the node itself, "+
		"unless there is a link")
	fs.StringVar(&t.to, "to", "", "where it goes, `IP:PORT/PROTOCOL`, such as 10.96.0.10:80/tcp")
	fs.BoolVar(&t.live.on, "live", false, "follow the next such packet through the kernel, and "+
		"name the rules that it meets, other programs', too (needs Linux 5.10)")
	fs.BoolVar(&t.live.send, "send", false, "as -live, and send the packet: -from is an address "+
		"of this node")
	fs.DurationVar(&t.live.wait, "wait", 0, "how long -live waits for a packet (default: until it "+
		"is interrupted)")
	return t.check
}

// check parses the flags.
func (o *traceOptions) check() error {
	if o.from == "" || o.to == "" {
		return errors.New("trace needs -from IP and -to IP:PORT/PROTOCOL")
	}
	from, link, _ := strings.Cut(o.from, "%")
	src, err := netip.ParseAddr(from)
	if err != nil {
		return fmt.Errorf("-from: %q: want an IP address, with %%LINK behind it if need be", o.from)
	}
	var to servicemodel.FrontendKey
	err = to.UnmarshalText([]byte(o.to))
	if err != nil || to.NodePort() || !to.Protocol.Valid() {
		return fmt.Errorf("-to: %q: want IP:PORT/PROTOCOL, such as 10.96.0.10:80/tcp", o.to)
	}
	o.packet = servicemodel.Packet{Src: netip.AddrPortFrom(src.Unmap(), clientPort),
		Dst:      netip.AddrPortFrom(to.Addr.Unmap().WithZone(""), to.Port),
		Protocol: to.Protocol, InInterface: link}
	if o.packet.Src.Addr().Is4() != o.packet.Dst.Addr().Is4() {
		return fmt.Errorf("-from and -to: %s and %s are of different families", o.from, o.to)
	}
	return o.checkLive()
}

// tracedStep is a step in the JSON output of trace.
type tracedStep struct {
	Step string `json:"step"`
	Text string `json:"text"`
}

// tracedPacket is a trace in the JSON output of trace.
type tracedPacket struct {
	Outcome string       `json:"outcome"`
	Cause   string       `json:"cause,omitempty"`
	Steps   []tracedStep `json:"steps"`
}

func newTracedPacket(t servicemodel.Trace) *tracedPacket {
	p := &tracedPacket{string(t.Decision.Outcome), t.Decision.Cause.String(),
		make([]tracedStep, len(t.Steps))}
	for i, s := range t.Steps {
		p.Steps[i] = tracedStep{s.Kind, s.Text}
	}
	return p
}

// trace says what happens to a packet, according to manifests or to the kernel.
func (p *program) trace(ctx context.Context) error {
	table, err := p.tableOf(ctx)
	if err != nil {
		return err
	}
	here, err := p.locality()
	if err != nil {
		return err
	}
	if p.opts.trace.live.on {
		return p.traceLive(ctx, table, here)
	}
	packet := p.opts.trace.packet
	packet.FromThisNode = packet.InInterface == "" && here.Local(packet.Src.Addr())
	t := table.Trace(packet, here)
	p.explainChoice(table, &t)
	p.notePods(table, packet.Src.Addr(), t)
	if p.opts.output != "json" {
		_, err := fmt.Fprint(p.stdout, t)
		return err
	}
	return p.printJSON(newTracedPacket(t))
}

// explainChoice adds the endpoint that a scheduler chooses, if the backend can tell.
func (p *program) explainChoice(table *servicemodel.Table, t *servicemodel.Trace) {
	choice := map[string]func(*servicemodel.Pool, netip.AddrPort) (slot int, ok bool){
		nftables.Name: nftables.Choice, iptables.Name: iptables.Choice}[p.opts.backend]
	id, balanced := t.Decision.Pool()
	if choice == nil || !balanced {
		return
	}
	pool := table.Pool(id)
	slot, ok := choice(pool, t.Packet.Src)
	if !ok {
		return
	}
	text := fmt.Sprintf("%s: a hash of %v chooses %v", pool.Scheduler, t.Packet.Src.Addr(),
		pool.Slots[slot].Endpoint)
	if _, port, _ := pool.Scheduler.Split(); port {
		text = fmt.Sprintf("%s: a hash of the client's address and port chooses, for port %d %v",
			pool.Scheduler, t.Packet.Src.Port(), pool.Slots[slot].Endpoint)
	}
	last := len(t.Steps) - 1 // the outcome
	t.Steps = slices.Insert(t.Steps, last, servicemodel.Step{Kind: "scheduler", Text: text})
}

// isOthers reports whether the instance belongs to a program that does not have the flags of
// kernlb.
func (p *program) isOthers(known instance.Program) bool {
	return known.Instance == p.opts.instance && known.Instance != instance.Default
}

// notePods says how to name the network of pods, if the client counts as outside only because the
// network is not named.
func (p *program) notePods(table *servicemodel.Table, src netip.Addr, t servicemodel.Trace) {
	pods := table.Rules().LocalPods
	named := pods.InterfacePrefix != "" || pods.Bridge != "" ||
		slices.ContainsFunc(pods.CIDRs, func(c netip.Prefix) bool {
			return c.Addr().Is4() == src.Is4()
		})
	if t.Decision.Origin == servicemodel.FromOutside && !named &&
		!slices.ContainsFunc(instance.Programs(), p.isOthers) {
		p.warn("note: no network of pods is known, so clients that are pods count as outside: " +
			"give apply or watch (or trace -f) -cluster-cidr CIDR")
	}
}

// locality returns the addresses of the node: from the flags, or from all interfaces.
func (p *program) locality() (servicemodel.Locality, error) {
	if len(p.opts.node.Addresses) > 0 {
		return p.opts.node.Addresses, nil
	}
	l, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("the addresses of this node: %w", err)
	}
	var here servicemodel.Locality
	for _, a := range l {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				here = append(here, ip.Unmap())
			}
		}
	}
	return here, nil
}
