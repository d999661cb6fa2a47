package page

import (
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

// traceData holds the form of a trace, and the result, if any.
type traceData struct {
	From string `json:"from"`
	Link string `json:"link,omitempty"`
	To   string `json:"to"`

	Outcome string              `json:"outcome,omitempty"`
	Cause   string              `json:"cause,omitempty"`
	Steps   []servicemodel.Step `json:"steps,omitempty"`
	// Wanted says that the kernel's contents are unknown, so the trace is about the desired state.
	Wanted bool `json:"wanted,omitempty"`
}

// clientPort is the source port of traced packets. Nothing depends on it.
const clientPort = 40000

func (p *Page) trace(r *http.Request, s *dataplane.Status) (any, error) {
	q := r.URL.Query()
	d := &traceData{From: q.Get("from"), Link: q.Get("link"), To: q.Get("to")}
	if !q.Has("from") {
		return d, nil // links to the form fill in only to
	}
	packet, err := d.packet()
	if err != nil {
		return d, err
	}
	here, err := p.cfg.Addresses()
	if err != nil {
		return d, fmt.Errorf("the addresses of this node: %w", err)
	}
	packet.FromThisNode = d.Link == "" && servicemodel.Locality(here).Local(packet.Src.Addr())
	t, known, err := table(s)
	if err != nil {
		return d, fmt.Errorf("what the kernel holds is not known, nor what is wanted: %w", err)
	}
	at := *s
	at.Held = t
	trace := at.Trace(packet, here)
	silence.Explain(&trace, p.cfg.Silent(), time.Now())
	d.Wanted, d.Steps = !known, trace.Steps
	d.Outcome, d.Cause = string(trace.Decision.Outcome), trace.Decision.Cause.String()
	return d, nil
}

func (d *traceData) packet() (p servicemodel.Packet, err error) {
	src, err := netip.ParseAddr(d.From)
	if err != nil || src.Zone() != "" {
		return p, badRequest("from: %q: want an IP address", d.From)
	}
	var to servicemodel.FrontendKey
	err = to.UnmarshalText([]byte(d.To))
	if err != nil || to.Addr.IsUnspecified() || !to.Protocol.Valid() {
		return p, badRequest("to: %q: want IP:PORT/PROTOCOL, such as 10.96.0.10:80/tcp", d.To)
	}
	p = servicemodel.Packet{Src: netip.AddrPortFrom(src.Unmap(), clientPort),
		Dst:      netip.AddrPortFrom(to.Addr.Unmap().WithZone(""), to.Port),
		Protocol: to.Protocol, InInterface: d.Link}
	if p.Src.Addr().Is4() != p.Dst.Addr().Is4() {
		return p, badRequest("from and to: %s and %s are of different families", d.From, d.To)
	}
	return p, nil
}
