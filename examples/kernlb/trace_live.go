package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/diagnose"
	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// livePacket is the JSON output of trace -live.
type livePacket struct {
	Summary  string           `json:"summary"`
	Expected *tracedPacket    `json:"expected"`
	Live     *livetrace.Trace `json:"live"`
}

// liveTrace follows packets.
type liveTrace struct {
	*program
	table  *servicemodel.Table
	packet servicemodel.Packet
	here   servicemodel.Locality
	tracer *livetrace.Tracer // nil if it sends
}

// traceLive follows the next packet, or a packet that it sends. It also prints the outcome that the
// table gives such a packet. With -count, -until-lost or both, it follows several packets.
func (p *program) traceLive(ctx context.Context, table *servicemodel.Table,
	packet servicemodel.Packet, here servicemodel.Locality) error {
	o := &p.opts.trace
	l := &liveTrace{program: p, table: table, packet: packet, here: here}
	if o.send && !packet.FromThisNode {
		return fmt.Errorf("%w: -send: %v is no address of this node", errInvalid,
			packet.Src.Addr())
	}

	if !o.send {
		var err error
		l.tracer, err = livetrace.Open(ctx, &livetrace.Config{Filter: livetrace.Filter{
			Src: packet.Src.Addr(), Dst: packet.Dst, Protocol: packet.Protocol,
			InInterface: packet.InInterface}})
		if err != nil {
			return err
		}
		defer l.tracer.Close()
		fmt.Fprintf(p.stderr, "waiting for a packet from %s to %s\n", o.from, o.to)
	}

	if o.count == 0 && !o.untilLost {
		t, err := l.next(ctx)
		if err != nil {
			return err
		}
		one, text := l.describe(t, l.silent(ctx, l.table))
		return p.print(one, text)
	}

	return l.several(ctx)
}

// next follows the next packet, to the endpoint that the flags name if they do.
func (l *liveTrace) next(ctx context.Context) (*livetrace.Trace, error) {
	o := &l.opts.trace
	if o.send {
		cfg := &diagnose.Config{Table: l.table, Here: l.here, Source: l.packet.Src.Addr(),
			To: servicemodel.FrontendKey{Addr: l.packet.Dst.Addr(), Port: l.packet.Dst.Port(),
				Protocol: l.packet.Protocol}, Direct: l.opts.backend == ipvs.Name}
		cfg.Silent = l.silent(ctx, l.table)
		if o.endpoint.IsValid() {
			return diagnose.Follow(ctx, cfg, o.endpoint)
		}
		return livetrace.Send(ctx, &livetrace.Config{Filter: livetrace.Filter{
			Src: l.packet.Src.Addr(), Dst: l.packet.Dst, Protocol: l.packet.Protocol}})
	}

	if o.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.wait, fmt.Errorf(
			"no packet from %s to %s came within %v", o.from, o.to, o.wait))
		defer cancel()
	}

	for {
		t, err := l.tracer.Next(ctx)
		if cause := context.Cause(ctx); err != nil && errors.Is(err, cause) {
			return nil, cause // without the words of contexts
		}
		if err != nil || !o.endpoint.IsValid() || t.Last.Dst == o.endpoint {
			return t, err
		}
	}
}

// describe returns a packet as JSON and as text. out are the endpoints that are silent.
func (l *liveTrace) describe(t *livetrace.Trace, out []silence.Change) (livePacket, string) {
	packet := l.packet
	packet.Src = t.Packet.Src
	expected := l.table.Trace(packet, l.here)
	silence.Explain(&expected, out, time.Now())
	summary := t.Summary(l.opts.owns)
	if f := expected.Decision.Frontend; t.Works() && t.Last.Dst != t.Packet.Dst && f != nil &&
		!has(expected.Decision.Candidates, out, t.Last.Dst) {
		summary = fmt.Sprintf("%v answers, but is no endpoint of %v now: the flow is older than "+
			"the last change (kernlb flows)", t.Last.Dst, f.Service.Name)
	}
	if c := expected.Decision.Cause; t.By != nil && l.opts.owns(*t.By) && c.Kind != "" {
		summary += ": " + c.String()
	} else if c.Kind != "" && !t.Works() {
		summary += fmt.Sprintf("; the service would have %s it anyhow: %v",
			expected.Decision.Outcome, c)
	}
	return livePacket{summary, newTracedPacket(expected), t},
		fmt.Sprintf("What services say of it:\n%v\nWhat it met:\n%v\n%s\n", expected, t, summary)
}

// has reports whether a service has an endpoint, also if it is out.
func has(l []servicemodel.Candidate, out []silence.Change, endpoint netip.AddrPort) bool {
	return slices.ContainsFunc(l, func(c servicemodel.Candidate) bool {
		return c.Endpoint == endpoint
	}) || slices.ContainsFunc(out, func(c silence.Change) bool { return c.Endpoint == endpoint })
}

// endpointSum sums up the packets that were sent to an endpoint, or to no endpoint if it is nil.
type endpointSum struct {
	Endpoint *netip.AddrPort `json:"endpoint,omitempty"`
	Answered int             `json:"answered"`
	Lost     int             `json:"lost"`
}

// livePackets is the JSON output of trace -live for several packets.
type livePackets struct {
	Packets   []livePacket  `json:"packets"`
	Endpoints []endpointSum `json:"endpoints"`
}

// several follows packets until there were enough, or one was lost or refused. The end of the wait
// and an interrupt end it, too, once there was a packet.
func (l *liveTrace) several(ctx context.Context) error {
	o := &l.opts.trace
	var all livePackets
	var text strings.Builder
	var lost error
	for begun := time.Now(); o.count == 0 || len(all.Packets) < o.count; {
		t, err := l.next(ctx)
		if err != nil && len(all.Packets) == 0 {
			return err
		} else if err != nil {
			fmt.Fprintf(&text, "ended after %v: %v; %d of %d failed\n",
				time.Since(begun).Round(time.Millisecond), err, all.failed(), len(all.Packets))
			break
		}

		one, whole := l.describe(t, l.silent(ctx, l.table))
		all.Packets = append(all.Packets, one)
		all.add(t)
		fmt.Fprintf(&text, "%d: %v: %s\n", len(all.Packets), t.Packet, one.Summary)
		if o.untilLost && !t.Works() {
			fmt.Fprintf(&text, "\n%s", whole)
			lost = errFault
			break
		}
	}

	w := newColumns(&text)
	fmt.Fprintln(w, "\nENDPOINT\tANSWERED\tFAILED")
	for _, e := range all.Endpoints {
		to := "none"
		if e.Endpoint != nil {
			to = e.Endpoint.String()
		}
		fmt.Fprintf(w, "%s\t%d\t%d\n", to, e.Answered, e.Lost)
	}

	return errors.Join(w.Flush(), l.print(all, text.String()), lost)
}

// failed returns the number of packets that were lost or refused.
func (p *livePackets) failed() (n int) {
	for _, e := range p.Endpoints {
		n += e.Lost
	}
	return n
}

// add counts a packet for the endpoint that it was sent to.
func (p *livePackets) add(t *livetrace.Trace) {
	var to *netip.AddrPort
	if t.Last.Dst != t.Packet.Dst || t.Works() { // an address of an endpoint stays
		to = &t.Last.Dst
	}
	i := 0
	for ; i < len(p.Endpoints); i++ {
		if e := p.Endpoints[i].Endpoint; e == to || e != nil && to != nil && *e == *to {
			break
		}
	}

	if i == len(p.Endpoints) {
		p.Endpoints = append(p.Endpoints, endpointSum{Endpoint: to})
	}
	if t.Works() {
		p.Endpoints[i].Answered++
	} else {
		p.Endpoints[i].Lost++
	}
}
