package kernelspace

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// plan is the work of a commit. It is a [backends.Plan].
type plan struct {
	steps []step // in their order

	needs map[netip.Addr]bool // the addresses whose endpoints load balancers need
	waits map[netip.Addr]bool // endpoints of this node that the container runtime has not made yet
}

// step is a call, or the two calls that replace a load balancer.
type step struct {
	verb, object string // such as "delete endpoint" and its address
	words        string // what a load balancer is to do
	drift        string // names an object that is there and that the table does not mean
	spec         *spec  // of a load balancer that differs from what the table means
	writes       bool   // it makes or changes a load balancer
	calls, bytes int
	do           func() error // makes the calls and changes [held], which is void after an error
}

// Plan renders the change set, and the repair of the last observation's drift.
func (b *Backend) Plan(c *servicemodel.ChangeSet) (backends.Plan, error) {
	if err := b.enter(context.Background(), "plan"); err != nil {
		return nil, err
	}
	defer b.mu.Unlock()
	if b.held == nil {
		return nil, fmt.Errorf("%s: plan: nothing was observed since the start or the last error",
			Name)
	}

	return b.plan(b.held, c.New), nil
}

// String returns a line for each step.
func (p *plan) String() string {
	var text strings.Builder
	for _, s := range p.steps {
		fmt.Fprintf(&text, "%s %s%s\n", s.verb, s.object, s.words)
	}
	return text.String()
}

// Stats returns the cost of the steps.
func (p *plan) Stats() backends.Stats {
	stats := backends.Stats{Elements: len(p.steps)}
	for _, s := range p.steps {
		stats.Messages += s.calls
		stats.Bytes += s.bytes
	}

	return stats
}

// plan compares the load balancers of a table with the existing load balancers. It compares all of
// them, because a call to HNS takes far longer than a comparison. Endpoints are created before the
// load balancers that need them, and endpoints that are no longer needed are deleted last.
func (b *Backend) plan(h *held, t *servicemodel.Table) *plan {
	p := &plan{needs: map[netip.Addr]bool{}, waits: map[netip.Addr]bool{}}
	want := b.render(t)
	for _, s := range want {
		for _, a := range s.endpoints {
			p.needs[a.addr] = true
		}
		for _, a := range b.ownAddrs(s, h.view) {
			p.needs[a] = true
		}
	}

	keys := slices.Collect(maps.Keys(want))
	for k := range h.placed {
		if want[k] == nil {
			keys = append(keys, k)
		}
	}

	slices.SortFunc(keys, servicemodel.FrontendKey.Compare)
	var deletes, adds, writes []step
	made := map[netip.Addr]bool{}
	for _, k := range keys {
		s := want[k]
		lb, lacks, waits := b.build(s, h.view)
		for _, a := range waits {
			p.waits[a] = true
		}
		for _, a := range lacks {
			if !made[a] {
				made[a] = true
				adds = append(adds, b.addEndpoint(h, a, s.vip && a == k.Addr))
			}
		}

		is, ours := h.placed[k]
		switch {
		case lb == nil && ours:
			deletes = append(deletes, b.deleteLoadBalancer(h, k, is.ID, s))
		case lb != nil && !(ours && len(lacks) == 0 && lb.same(&is.Sent)):
			writes = append(writes, b.writeLoadBalancer(h, s, lb, len(lacks)))
		}
	}

	for _, id := range h.extra {
		deletes = append(deletes, b.deleteLoadBalancer(h, servicemodel.FrontendKey{}, id, nil))
	}
	p.steps = slices.Concat(deletes, adds, writes, b.drops(h, p.needs))
	return p
}

// addEndpoint adds the endpoint of an address. vip says that the address is a cluster IP.
func (b *Backend) addEndpoint(h *held, a netip.Addr, vip bool) step {
	e := b.newEndpoint(h.view, a, vip)
	return step{verb: "add endpoint", object: a.String(), calls: 1, bytes: size(e),
		do: func() error {
			made, err := b.hns.CreateEndpoint(e)
			if err == nil {
				h.view.add(made, b.prefix())
			}
			return err
		}}
}

// drops deletes our endpoints that no load balancer needs.
func (b *Backend) drops(h *held, needs map[netip.Addr]bool) (l []step) {
	drop := func(id, object, drift string) {
		l = append(l, step{verb: "delete endpoint", object: object, drift: drift, calls: 1,
			do: func() error {
				delete(h.view.known, lower(id))
				maps.DeleteFunc(h.view.byAddr, func(_ netip.Addr, e *Endpoint) bool {
					return e.ID == id
				})
				return without(b.hns.DeleteEndpoint(id))
			}})
	}

	for _, a := range slices.SortedFunc(maps.Keys(h.view.byAddr), netip.Addr.Compare) {
		e := h.view.byAddr[a]
		if !needs[a] && strings.HasPrefix(e.Name, b.prefix()) {
			drop(e.ID, a.String(), "endpoint "+a.String())
		}
	}

	for _, id := range h.view.doubles {
		drop(id, id, "endpoint "+id+", which another one has the address of")
	}
	return l
}

// deleteLoadBalancer deletes the load balancer of a key; the key is zero if it is at no place. s is
// nil if the table has no load balancer there.
func (b *Backend) deleteLoadBalancer(h *held, k servicemodel.FrontendKey, id string,
	s *spec) step {
	d := step{verb: "delete load balancer", object: id, spec: s, calls: 1,
		do: func() error {
			delete(h.placed, k)
			return without(b.hns.DeleteLoadBalancer(id))
		}}
	if k.Port != 0 {
		d.object = k.String()
	}
	if s == nil {
		d.drift = "load balancer " + d.object
	}
	return d
}

// writeLoadBalancer adds, changes or replaces the load balancer of s. lb is the present load
// balancer, and lacks is the number of its endpoints that are added first.
func (b *Backend) writeLoadBalancer(h *held, s *spec, lb *LoadBalancer, lacks int) step {
	id := h.placed[s.key].ID
	if id == "" && b.cfg.TakeOver {
		id = h.foreign[s.key]
	}
	const guid = 39 // bytes, in quotes and with a comma
	w := step{verb: "add load balancer", object: s.key.String(), words: s.words(lb), spec: s,
		writes: true, calls: 1, bytes: size(lb) + guid*lacks,
		do: func() error { return b.place(h, s, id) }}
	if id != "" {
		w.verb = "change load balancer"
		if !b.features.ModifyLoadBalancer {
			w.verb, w.calls = "replace load balancer", 2
		}
	}

	return w
}

func size(v any) int {
	text, _ := json.Marshal(v) // these types always have JSON
	return len(text)
}

// words describes a load balancer.
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
