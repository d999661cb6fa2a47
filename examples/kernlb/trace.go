package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// traceOptions are the flags of trace.
type traceOptions struct {
	from, to string
	packet   servicemodel.Packet
	live     liveOptions
}

// clientPort is that of traced packets, of which nothing depends on it.
const clientPort = 40000

func (o *traceOptions) define(fs *flag.FlagSet) {
	fs.StringVar(&o.from, "from", "", "trace: where the packet comes from, `IP` or IP%LINK, the "+
		"link being the one that it comes in by; an address of this node stands for the node "+
		"itself, unless there is a link")
	fs.StringVar(&o.to, "to", "", "trace: where it goes, `IP:PORT/PROTOCOL`, such as "+
		"10.96.0.10:80/tcp")
	fs.BoolVar(&o.live.on, "live", false, "trace: follow the next such packet through the kernel, "+
		"and name the rules that it meets, other programs', too (needs Linux 5.10)")
	fs.BoolVar(&o.live.send, "send", false, "trace: as -live, and send the packet: -from is an "+
		"address of this node")
	fs.DurationVar(&o.live.wait, "wait", 0, "trace: how long -live waits for a packet (default: "+
		"until it is interrupted)")
}

// check reads the flags.
func (o *traceOptions) check() error {
	from, link, _ := strings.Cut(o.from, "%")
	src, err := netip.ParseAddr(from)
	if err != nil {
		return fmt.Errorf("-from: %q: want an IP address, with %%LINK behind it if need be", o.from)
	}
	where, name, ok := strings.Cut(o.to, "/")
	dst, err := netip.ParseAddrPort(where)
	protocol := map[string]servicemodel.Protocol{"tcp": servicemodel.TCP, "udp": servicemodel.UDP,
		"sctp": servicemodel.SCTP}[name]
	if !ok || err != nil || protocol == 0 {
		return fmt.Errorf("-to: %q: want IP:PORT/PROTOCOL, such as 10.96.0.10:80/tcp", o.to)
	}
	o.packet = servicemodel.Packet{Src: netip.AddrPortFrom(src.Unmap(), clientPort),
		Dst:      netip.AddrPortFrom(dst.Addr().Unmap().WithZone(""), dst.Port()),
		Protocol: protocol, InInterface: link}
	if o.packet.Src.Addr().Is4() != o.packet.Dst.Addr().Is4() {
		return fmt.Errorf("-from and -to: %s and %s are of different families", o.from, o.to)
	}
	return o.checkLive()
}

// trace says what happens to a packet: by manifests, or by what the kernel holds.
func (p *program) trace(ctx context.Context) error {
	if len(p.opts.files) > 0 {
		s, err := p.read()
		if err != nil {
			return err
		}
		table, err := servicemodel.Resolve(nil, s)
		if err != nil {
			return p.invalid(err)
		}
		return p.printTrace(ctx, table)
	}
	p.findBackend(ctx)
	return p.withEngine(ctx, servicemodel.State{},
		func(ctx context.Context, e *dataplane.Engine) error {
			o, err := e.Observe(ctx)
			if err != nil {
				return err
			}
			return p.printTrace(ctx, o.Table)
		})
}

// tracedStep is a step of a trace, as trace prints it with -o json.
type tracedStep struct {
	Step string `json:"step"`
	Text string `json:"text"`
}

// tracedPacket is a trace, as trace prints it with -o json.
type tracedPacket struct {
	Outcome string       `json:"outcome"`
	Cause   string       `json:"cause,omitempty"`
	Steps   []tracedStep `json:"steps"`
}

func newTracedPacket(t servicemodel.Trace) *tracedPacket {
	p := &tracedPacket{t.Decision.Outcome.String(), t.Decision.Cause.String(),
		make([]tracedStep, len(t.Steps))}
	for i, s := range t.Steps {
		p.Steps[i] = tracedStep{s.Kind.String(), s.Text}
	}
	return p
}

func (p *program) printTrace(ctx context.Context, table *servicemodel.Table) error {
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
	if p.opts.output != "json" {
		_, err := fmt.Fprint(p.stdout, t)
		return err
	}
	return p.printJSON(newTracedPacket(t))
}

// locality returns the addresses of the node: those that flags name, or all of its interfaces.
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

// checkTrace checks the flags of trace, which other commands do not have.
func (o *options) checkTrace(command string) error {
	switch {
	case command != "trace":
		return nil
	case o.trace.from == "" || o.trace.to == "":
		return errors.New("trace needs -from IP and -to IP:PORT/PROTOCOL")
	}
	return o.trace.check()
}
