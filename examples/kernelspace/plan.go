package kernelspace

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// plan lists the calls of a commit, in their order. Endpoints that load balancers need come first,
// and endpoints that none needs any more go last.
type plan struct {
	deletes []step // load balancers
	adds    []step // endpoints
	writes  []step // load balancers: two calls for each without [Features.ModifyLoadBalancer]
	drops   []step // endpoints

	needs map[netip.Addr]bool // the addresses whose endpoints load balancers need
	waits []netip.Addr        // endpoints of this node that the container runtime has not made yet
}

// step is a call, or the two that replace a load balancer.
type step struct {
	verb string
	key  servicemodel.FrontendKey
	id   string // of the object that exists; of an endpoint to delete
	spec *spec
	addr netip.Addr // of an endpoint
	vip  bool       // the endpoint of a cluster IP
}

// Plan renders the change set, and the repair of the last observation's drift.
func (b *Backend) Plan(c *servicemodel.ChangeSet) (dataplane.Plan, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, fmt.Errorf("%s: plan: %w", Name, dataplane.ErrClosed)
	case b.held == nil:
		return nil, fmt.Errorf("%s: plan: nothing was observed since the start or the last error",
			Name)
	}
	text, stats := b.describe(b.held, b.plan(b.held, c.New))
	return rendered{text, stats}, nil
}

// rendered is a [dataplane.Plan].
type rendered struct {
	text  string
	stats dataplane.Stats
}

func (r rendered) String() string         { return r.text }
func (r rendered) Stats() dataplane.Stats { return r.stats }

// plan compares the load balancers that a table means with those that are there. It looks at all of
// them, because a call to HNS takes far longer than a comparison.
func (b *Backend) plan(h *held, t *servicemodel.Table) *plan {
	p := &plan{needs: map[netip.Addr]bool{}}
	want, gateway := map[servicemodel.FrontendKey]*spec{}, b.gateway(h.view)
	here, health := hairpins(t), healthPorts(t)
	for f := range t.Frontends() {
		for _, s := range b.specs(t, f, here, health) {
			want[s.key] = s
			for _, a := range b.host.needs(s, h.view) {
				p.needs[a] = true
			}
		}
	}
	keys := slices.Collect(maps.Keys(want))
	for k := range h.placed {
		if want[k] == nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, servicemodel.FrontendKey.Compare)
	made := map[netip.Addr]bool{}
	for _, k := range keys {
		p.waits = append(p.waits, b.compare(h, p, k, want[k], gateway, made)...)
	}
	for _, id := range h.extra {
		p.deletes = append(p.deletes, step{verb: "delete load balancer", id: id})
	}
	for _, a := range slices.SortedFunc(maps.Keys(h.view.byAddr), netip.Addr.Compare) {
		if b.unused(h.view.byAddr[a], p.needs[a]) {
			p.drops = append(p.drops,
				step{verb: "delete endpoint", id: h.view.byAddr[a].ID, addr: a})
		}
	}
	for _, id := range h.view.doubles {
		p.drops = append(p.drops, step{verb: "delete endpoint", id: id})
	}
	return p
}

// unused reports whether an endpoint is ours, and no load balancer needs it.
func (b *Backend) unused(e *Endpoint, needed bool) bool {
	return !needed && strings.HasPrefix(e.Name, b.prefix())
}

// compare adds the steps for one place. s is nil if it is to have no load balancer.
func (b *Backend) compare(h *held, p *plan, k servicemodel.FrontendKey, s *spec,
	gateway *Endpoint, made map[netip.Addr]bool) (waits []netip.Addr) {
	is, ours := h.placed[k]
	there := is.ID
	if !ours && b.cfg.TakeOver {
		there = h.foreign[k]
	}
	var lb *LoadBalancer
	var lacks []netip.Addr
	if s != nil {
		lb, lacks, waits = b.host.build(s, h.view, gateway)
	}
	for _, a := range lacks {
		if !made[a] {
			made[a] = true
			p.adds = append(p.adds, step{verb: "add endpoint", addr: a,
				vip: s.vip && a == s.key.Addr})
		}
	}
	switch {
	case lb == nil && ours:
		p.deletes = append(p.deletes, step{verb: "delete load balancer", key: k, id: is.ID})
	case lb == nil, ours && len(lacks) == 0 && lb.same(&is.Sent):
	case there == "":
		p.writes = append(p.writes, step{verb: "add load balancer", key: k, spec: s})
	case b.features.ModifyLoadBalancer:
		p.writes = append(p.writes, step{verb: "change load balancer", key: k, id: there, spec: s})
	default:
		p.writes = append(p.writes, step{verb: "replace load balancer", key: k, id: there, spec: s})
	}
	return waits
}

// steps returns all steps in their order.
func (p *plan) steps() []step { return slices.Concat(p.deletes, p.adds, p.writes, p.drops) }

// describe returns a line for each step, and the cost of the plan.
func (b *Backend) describe(h *held, p *plan) (string, dataplane.Stats) {
	var text strings.Builder
	var stats dataplane.Stats
	gateway := b.gateway(h.view)
	for _, s := range p.steps() {
		stats.Messages++
		stats.Elements++
		switch {
		case s.spec != nil:
			if strings.HasPrefix(s.verb, "replace") {
				stats.Messages++
			}
			lb, lacks, _ := b.host.build(s.spec, h.view, gateway)
			stats.Bytes += size(lb) + 39*len(lacks) // a GUID in quotes and a comma
			fmt.Fprintf(&text, "%s %v%s\n", s.verb, s.key, s.spec.words(lb))
		case s.addr.IsValid():
			if s.verb == "add endpoint" {
				stats.Bytes += size(b.host.newEndpoint(h.view, s.addr, b.name(s.addr), s.vip))
			}
			fmt.Fprintf(&text, "%s %v\n", s.verb, s.addr)
		case s.key.Port != 0:
			fmt.Fprintf(&text, "%s %v\n", s.verb, s.key)
		default:
			fmt.Fprintf(&text, "%s %s\n", s.verb, s.id)
		}
	}
	return text.String(), stats
}

// name is the name of our endpoint of an address.
func (b *Backend) name(a netip.Addr) string { return b.prefix() + a.String() }

func size(v any) int {
	text, _ := json.Marshal(v) // these types always have JSON
	return len(text)
}

// words says what a load balancer does.
func (s *spec) words(lb *LoadBalancer) string {
	var w strings.Builder
	for _, t := range s.endpoints {
		fmt.Fprintf(&w, " %v", t.addr)
	}
	if s.gateway {
		w.WriteString(" root-endpoint")
	}
	fmt.Fprintf(&w, " port %d", s.port)
	m := &lb.PortMappings[0]
	for _, flag := range []struct {
		on   bool
		name string
	}{{s.local, "local"}, {s.dist != 0, "source-ip"}, {lb.Flags&FlagDSR != 0, "dsr"},
		{m.Flags&PortLocalRoutedVIP != 0, "local-routed-vip"},
		{m.Flags&PortUseMux != 0, "use-mux"}, {m.Flags&PortPreserveDIP != 0, "preserve-dip"},
		{m.Flags&PortVIPExternalIP != 0, "vip-external-ip"}} {
		if flag.on {
			w.WriteString(" " + flag.name)
		}
	}
	if lb.SourceVIP != "" {
		w.WriteString(" from " + lb.SourceVIP)
	}
	return w.String()
}
