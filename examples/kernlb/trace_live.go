package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/examples/internal/instance"
	"github.com/kernlb/kernlb/servicemodel"
)

// liveOptions are the flags of trace that follow a real packet.
type liveOptions struct {
	on, send bool
	wait     time.Duration
}

// checkLive checks these flags.
func (o *traceOptions) checkLive() error {
	o.live.on = o.live.on || o.live.send
	switch {
	case o.live.wait != 0 && (o.live.wait < 0 || !o.live.on || o.live.send):
		return errors.New("-wait needs -live, and cannot be negative")
	case o.live.send && o.packet.InInterface != "":
		return errors.New("-send cannot be combined with a link: packets of this node have none")
	}
	return nil
}

// livePacket is the JSON output of trace -live.
type livePacket struct {
	Summary  string           `json:"summary"`
	Expected *tracedPacket    `json:"expected"`
	Live     *livetrace.Trace `json:"live"`
}

// traceLive follows the next packet, or one that it sends. It also prints what the table says of
// such a packet.
func (p *program) traceLive(ctx context.Context, table *servicemodel.Table,
	here servicemodel.Locality) error {
	packet := p.opts.trace.packet
	packet.FromThisNode = packet.InInterface == "" && here.Local(packet.Src.Addr())
	if p.opts.trace.live.send && !packet.FromThisNode {
		return fmt.Errorf("%w: -send: %v is no address of this node", errInvalid,
			packet.Src.Addr())
	}
	t, err := p.follow(ctx, livetrace.Filter{Src: packet.Src.Addr(), Dst: packet.Dst,
		Protocol: packet.Protocol, InInterface: packet.InInterface})
	if err != nil {
		return err
	}
	packet.Src = t.Packet.Src
	expected := table.Trace(packet, here)
	summary := t.Summary(p.opts.owns)
	if c := expected.Decision.Cause; t.By != nil && p.opts.owns(*t.By) &&
		c.Kind != "" {
		summary += ": " + c.String()
	}
	if p.opts.output == "json" {
		return p.printJSON(livePacket{summary, newTracedPacket(expected), t})
	}
	_, err = fmt.Fprintf(p.stdout, "What services say of it:\n%v\nWhat it met:\n%v\n%s\n", expected,
		t, summary)
	return err
}

// follow sends a packet, or waits for one.
func (p *program) follow(ctx context.Context, f livetrace.Filter) (*livetrace.Trace, error) {
	cfg, o := &livetrace.Config{Filter: f}, &p.opts.trace
	if o.live.send {
		return livetrace.Send(ctx, cfg)
	}
	t, err := livetrace.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	if o.live.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.live.wait, fmt.Errorf(
			"no packet from %s to %s came within %v", o.from, o.to, o.live.wait))
		defer cancel()
	}
	fmt.Fprintf(p.stderr, "waiting for a packet from %s to %s\n", o.from, o.to)
	return t.Next(ctx)
}

// owns reports whether a rule belongs to the instance, in any backend.
func (o *options) owns(r livetrace.Rule) bool {
	switch r.Table {
	case o.instance, o.instance + "-ipvs":
		return r.Family == "ip" || r.Family == "ip6"
	}
	return strings.HasPrefix(r.Chain, instance.ChainPrefix(o.instance)+"-")
}
