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

	here   map[netip.Addr]bool // changes of held.here
	health map[string]uint16
	gone   map[netip.Addr][]servicemodel.FrontendKey // changes of held.uses
	uses   map[netip.Addr][]servicemodel.FrontendKey
	waits  []netip.Addr // endpoints of this node that the container runtime has not made yet
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
	p := b.plan(c)
	text, stats := b.describe(p)
	return rendered{text, stats}, nil
}

// rendered is a [dataplane.Plan].
type rendered struct {
	text  string
	stats dataplane.Stats
}

func (r rendered) String() string         { return r.text }
func (r rendered) Stats() dataplane.Stats { return r.stats }

// plan compares the load balancers of the changed frontends before and after.
func (b *Backend) plan(c *servicemodel.ChangeSet) *plan {
	h := b.held
	p := &plan{here: map[netip.Addr]bool{}, health: h.health,
		gone: map[netip.Addr][]servicemodel.FrontendKey{},
		uses: map[netip.Addr][]servicemodel.FrontendKey{}}
	for _, a := range c.Hairpins {
		p.here[a.Addr] = a.Added
	}
	if len(c.Health) > 0 {
		p.health = healthPorts(c.New)
	}
	was, want := map[servicemodel.FrontendKey]*spec{}, map[servicemodel.FrontendKey]*spec{}
	order := servicemodel.FrontendKey.Compare
	for _, k := range slices.SortedFunc(maps.Keys(b.affected(c)), order) {
		for _, s := range b.specs(c.Old, c.Old.Frontend(k), h.isHere, h.health) {
			was[s.key] = s
		}
		for _, s := range b.specs(c.New, c.New.Frontend(k), func(a netip.Addr) bool {
			on, changed := p.here[a]
			return on || !changed && h.here[a]
		}, p.health) {
			want[s.key] = s
		}
	}
	both := maps.Clone(was)
	maps.Copy(both, want)
	gateway, made := b.gateway(h.view), map[netip.Addr]bool{}
	for _, k := range slices.SortedFunc(maps.Keys(both), order) {
		if s := was[k]; s != nil {
			for _, a := range b.host.needs(s, h.view) {
				p.gone[a] = append(p.gone[a], k)
			}
		}
		if s := want[k]; s != nil {
			for _, a := range b.host.needs(s, h.view) {
				p.uses[a] = append(p.uses[a], k)
			}
		}
		p.waits = append(p.waits, b.compare(p, k, want[k], gateway, made)...)
	}
	for _, id := range h.extra {
		p.deletes = append(p.deletes, step{verb: "delete load balancer", id: id})
	}
	b.release(p, made)
	return p
}

// affected returns the keys of all frontends whose load balancers may change.
func (b *Backend) affected(c *servicemodel.ChangeSet) map[servicemodel.FrontendKey]bool {
	keys := map[servicemodel.FrontendKey]bool{}
	add := func(t *servicemodel.Table, of servicemodel.PortName) {
		for _, f := range t.FrontendsOf(of) {
			keys[f.Key] = true
		}
	}
	for _, fc := range c.Frontends {
		for _, f := range []*servicemodel.Frontend{fc.Old, fc.New} {
			if f != nil {
				keys[f.Key] = true
			}
		}
	}
	for _, pc := range c.Pools {
		for _, pool := range []*servicemodel.Pool{pc.Old, pc.New} {
			if pool != nil {
				add(c.Old, pool.ID.Service)
				add(c.New, pool.ID.Service)
			}
		}
	}
	for _, a := range c.Hairpins { // an endpoint may have moved to this node or away
		for k := range b.held.uses[a.Addr] {
			if c.New.Frontend(k) != nil {
				keys[k] = true
			}
		}
	}
	if b.renderer.forward && len(keys)+len(c.Health) > 0 {
		shareHealth(c, keys)
	}
	return keys
}

// shareHealth adds the load-balancer IPs whose health checks may change with those of other ports
// and services. All frontends of an address share one load balancer for a port of health checks.
func shareHealth(c *servicemodel.ChangeSet, keys map[servicemodel.FrontendKey]bool) {
	addrs := map[netip.Addr]bool{}
	for k := range keys {
		addrs[k.Addr] = true
	}
	for f := range c.New.Frontends() {
		if f.Kind == servicemodel.LoadBalancer && (addrs[f.Key.Addr] || len(c.Health) > 0) {
			keys[f.Key] = true
		}
	}
}

// compare adds the steps for one place. s is nil if it is to have no load balancer.
func (b *Backend) compare(p *plan, k servicemodel.FrontendKey, s *spec, gateway *Endpoint,
	made map[netip.Addr]bool) (waits []netip.Addr) {
	h := b.held
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

// release adds the deletion of our remote endpoints that no load balancer needs any more.
func (b *Backend) release(p *plan, made map[netip.Addr]bool) {
	h := b.held
	for _, id := range h.unused {
		if a, e := h.endpoint(id); e == nil || len(p.uses[a]) == 0 || h.view.byAddr[a] != e {
			p.drops = append(p.drops, step{verb: "delete endpoint", id: id, addr: a})
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(p.gone), netip.Addr.Compare) {
		e := h.view.byAddr[a]
		if e == nil || !strings.HasPrefix(e.Name, b.prefix()) || len(p.uses[a]) > 0 ||
			made[a] || slices.Contains(h.unused, e.ID) {
			continue
		}
		left := len(h.uses[a])
		for _, k := range p.gone[a] {
			if h.uses[a][k] {
				left--
			}
		}
		if left == 0 {
			p.drops = append(p.drops, step{verb: "delete endpoint", id: e.ID, addr: a})
		}
	}
}

// endpoint returns the endpoint of the view with an identity, and its address.
func (h *held) endpoint(id string) (netip.Addr, *Endpoint) {
	for a, e := range h.view.byAddr {
		if e.ID == id {
			return a, e
		}
	}
	return netip.Addr{}, nil
}

// steps returns all steps in their order.
func (p *plan) steps() []step { return slices.Concat(p.deletes, p.adds, p.writes, p.drops) }

// describe returns a line for each step, and the cost of the plan.
func (b *Backend) describe(p *plan) (string, dataplane.Stats) {
	var text strings.Builder
	var stats dataplane.Stats
	gateway := b.gateway(b.held.view)
	for _, s := range p.steps() {
		stats.Messages++
		stats.Elements++
		switch {
		case s.spec != nil:
			if strings.HasPrefix(s.verb, "replace") {
				stats.Messages++
			}
			lb, lacks, _ := b.host.build(s.spec, b.held.view, gateway)
			stats.Bytes += size(lb) + 39*len(lacks) // a GUID in quotes and a comma
			fmt.Fprintf(&text, "%s %v%s\n", s.verb, s.key, s.spec.words(lb))
		case s.addr.IsValid():
			if s.verb == "add endpoint" {
				stats.Bytes += size(b.host.newEndpoint(b.held.view, s.addr, b.name(s.addr), s.vip))
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
