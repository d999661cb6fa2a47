package iptables

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// reading turns rules back into frontends and pools.
type reading struct {
	l        *layout
	raw      *raw
	written  *servicemodel.Table // the table of the last commit, nil before the first
	c        servicemodel.Contents
	pools    map[servicemodel.PoolID]*servicemodel.Pool // nil for a pool that is not whole
	localnet localnet
	// unread is the reason why nothing was read.
	unread error
}

// contents reads everything. Without settings, there is no instance of ours.
func (r *reading) contents() servicemodel.Contents {
	settings := r.raw.chains[r.l.settingsIn(r.raw)]
	if settings == nil {
		return servicemodel.Contents{}
	}
	r.c.Rules, r.localnet, r.unread = parseSettings(settings.rules)
	if r.unread != nil {
		r.c = servicemodel.Contents{}
		return r.c
	}

	r.pools = map[servicemodel.PoolID]*servicemodel.Pool{}
	for _, f := range nft.Families {
		r.frontends(f)
		r.c.ClusterIPs = append(r.c.ClusterIPs,
			r.addresses(r.l.tree(f, filterClusterIPs), clusterIPRule)...)
		r.c.Hairpins = append(r.c.Hairpins, r.addresses(r.l.tree(f, natHairpins), hairpinRule)...)
	}

	used := map[servicemodel.PoolID]bool{}
	for _, fe := range r.c.Frontends {
		for _, v := range [...]servicemodel.Verdict{fe.Internal, fe.External} {
			if id, ok := fe.Pool(v); ok && !used[id] {
				used[id] = true
				r.c.Pools = append(r.c.Pools, r.pools[id])
			}
		}
	}

	return r.c
}

// healthChecks returns the health checks of the last commit, so that missing rules are drift.
// Before the first commit, it reads health checks from the rules, without numbers of endpoints.
func (r *reading) healthChecks() (l []servicemodel.Change[servicemodel.HealthCheck]) {
	if r.written != nil {
		for h := range r.written.HealthChecks() {
			l = append(l, servicemodel.Change[servicemodel.HealthCheck]{New: &h})
		}
		return l
	}

	found := map[servicemodel.Name]*servicemodel.HealthCheck{}
	for i, f := range nft.Families {
		r.walk(r.l.tree(f, filterHealthChecks), func(have *rule) {
			text, _ := strings.CutSuffix(have.comment, healthCheckComment)
			var name servicemodel.Name
			err := name.UnmarshalText([]byte(text))
			h := &servicemodel.HealthCheck{Service: name, Port: have.ports.from,
				IPv4: servicemodel.NotServed, IPv6: servicemodel.NotServed}
			if want := healthCheckRule(h); err != nil || !have.same(&want) {
				return
			}
			if found[name] == nil {
				found[name] = h
			}
			if found[name].Port == h.Port {
				*served(found[name], i) = 0
			}
		})
	}

	for _, h := range found {
		l = append(l, servicemodel.Change[servicemodel.HealthCheck]{New: h})
	}
	return l
}

// walk calls fn for each rule in any chain of a tree.
func (r *reading) walk(d *dispatch, fn func(*rule)) {
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		c := r.raw.chains[d.table.chain(name)]
		if c == nil || seen[name] {
			return
		}
		seen[name] = true
		for i := range c.rules {
			if to := c.rules[i].chain; strings.HasPrefix(to, d.names.prefix+"-"+d.step+"-") {
				visit(to)
			} else {
				fn(&c.rules[i])
			}
		}
	}

	visit(d.root)
}

// addresses reads a tree of addresses. It ignores an address unless it has exactly the rule that it
// should have.
func (r *reading) addresses(d *dispatch, want func(netip.Addr) rule) []netip.Addr {
	var l []netip.Addr
	r.walk(d, func(found *rule) {
		if !found.dst.IsSingleIP() {
			return
		}
		w := want(found.dst.Addr())
		if found.same(&w) {
			l = append(l, found.dst.Addr())
		}
	})

	slices.SortFunc(l, netip.Addr.Compare)
	return slices.Compact(l)
}

// frontends reads the complete frontends of a family, with their source ranges and pools. Of
// several frontends with the same key, the first wins.
func (r *reading) frontends(f *nft.Family) {
	filtered := map[servicemodel.FrontendKey]string{} // the chains of source ranges in filter
	for _, kind := range [...]treeKind{filterSources, filterRanges} {
		d := r.l.tree(f, kind)
		r.walk(d, func(found *rule) {
			key, ok := r.key(d, found)
			if ok && filtered[key] == "" && found.chain != "" {
				filtered[key] = found.chain
			}
		})
	}

	seen := map[servicemodel.FrontendKey]bool{}
	for _, kind := range [...]treeKind{natNodePorts, natServices, natRanges} {
		d := r.l.tree(f, kind)
		r.walk(d, func(found *rule) {
			key, ok := r.key(d, found)
			if !ok || seen[key] {
				return
			}
			fe, err := rendering.ParseComment(found.comment, key, nil)
			if err != nil {
				return
			}
			sources := nat.of(f).chain(found.chain)
			if !fe.Internal.Balances() && !fe.External.Balances() {
				sources = filter.of(f).chain(filtered[key])
			}
			if !r.sources(f, fe, sources) {
				return
			}
			for _, v := range [...]servicemodel.Verdict{fe.Internal, fe.External} {
				if v.Balances() && !r.pool(f, fe, v) {
					return
				}
			}

			seen[key] = true
			r.c.Frontends = append(r.c.Frontends, fe)
		})
	}
}

// key returns the frontend of a rule.
func (r *reading) key(d *dispatch, found *rule) (servicemodel.FrontendKey, bool) {
	isRange := found.ports.from != found.ports.to
	if !found.proto.Valid() || isRange != (d.step == stepRange) || found.ports.any() {
		return servicemodel.FrontendKey{}, false
	}
	k := servicemodel.FrontendKey{Protocol: found.proto, Port: found.ports.from}
	if isRange {
		k.EndPort = found.ports.to
	}
	if d.kind == natNodePorts {
		k.Addr = d.f.Any
		return k, !found.dst.IsValid()
	}

	k.Addr = found.dst.Addr()
	return k, found.dst.IsSingleIP()
}

// sources reads the source ranges of a frontend from a chain, if that is a chain of source ranges.
// It returns false if the chain does not exist.
func (r *reading) sources(f *nft.Family, fe *servicemodel.Frontend, from chainID) bool {
	if !strings.HasPrefix(from.name, r.l.names.prefix+"-"+kindSources+"-") {
		return true
	}
	c := r.raw.chains[from]
	if c == nil {
		return false
	}
	fe.Sources = []netip.Prefix{}
	for j := range c.rules {
		have := &c.rules[j]
		if have.opaque || have.target != targetGoto && have.target != targetReturn {
			continue
		}
		p := have.src
		if !p.IsValid() {
			p = netip.PrefixFrom(f.Any, 0)
		}
		fe.Sources = append(fe.Sources, p)
	}

	return true
}

// pool reads the pool of a frontend, unless it was already read for another frontend.
func (r *reading) pool(f *nft.Family, fe *servicemodel.Frontend, v servicemodel.Verdict) bool {
	id, _ := fe.Pool(v)
	p, known := r.pools[id]
	if !known {
		name := r.l.names.service(kindOfPool(v), fe.Service, "")
		p = r.readPool(id, r.raw.chains[nat.of(f).chain(name)], fe.Affinity > 0)
		r.pools[id] = p
	}

	return p != nil
}

// readPool reads the rules that send packets to endpoints, from the last to the first. With
// affinity, it ignores the rules that only look for known clients.
func (r *reading) readPool(id servicemodel.PoolID, c *rawChain, affinity bool) *servicemodel.Pool {
	if c == nil {
		return nil
	}
	p := &servicemodel.Pool{ID: id}
	seen := map[netip.AddrPort]bool{}
	for j := len(c.rules) - 1; j >= 0; j-- {
		f := &c.rules[j]
		if f.target != targetDNAT || affinity && f.recent.kind != recentSet || seen[f.to] {
			continue
		}
		seen[f.to] = true
		scheduler, weight, err := parseSlot(f.comment)
		if err != nil {
			return nil
		}
		p.Scheduler = cmp.Or(p.Scheduler, scheduler)
		p.Slots = append(p.Slots, servicemodel.Slot{Endpoint: f.to, Weight: weight})
	}

	if len(p.Slots) == 0 {
		return nil
	}
	return p
}
