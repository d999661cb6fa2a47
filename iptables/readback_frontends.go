package iptables

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// reading turns rules back into frontends and pools.
type reading struct {
	l     *layout
	raw   *raw
	c     servicemodel.Contents
	pools map[servicemodel.PoolID]*servicemodel.Pool // nil for one that is not whole
	// localnetBefore is what the settings say of the sysctl route_localnet.
	localnetBefore bool
	// unread is why nothing of what is there was read.
	unread error
}

// contents reads everything. Without settings there is no instance, only perhaps one that somebody
// else left.
func (r *reading) contents() servicemodel.Contents {
	settings := r.raw.chain(chainID{0, nat, r.l.names.settings()})
	if settings == nil {
		return servicemodel.Contents{}
	}
	rules, before, err := parseSettings(settings.rules)
	if err != nil {
		r.unread = err
		return servicemodel.Contents{}
	}
	r.c.Rules, r.localnetBefore = rules, before
	r.pools = map[servicemodel.PoolID]*servicemodel.Pool{}
	for i := range nft.Families {
		r.frontends(uint8(i))
		r.c.ClusterIPs = append(r.c.ClusterIPs, r.addresses(uint8(i), filterClusterIPs,
			clusterIPRule)...)
		r.c.Hairpins = append(r.c.Hairpins, r.addresses(uint8(i), natHairpins, hairpinRule)...)
	}
	r.usedPools()
	return r.c
}

// usedPools adds the pools of the frontends that are whole.
func (r *reading) usedPools() {
	used := map[servicemodel.PoolID]bool{}
	for _, fe := range r.c.Frontends {
		for _, v := range [...]servicemodel.Verdict{fe.Internal, fe.External} {
			if id, ok := fe.Pool(v); ok && !used[id] {
				used[id] = true
				r.c.Pools = append(r.c.Pools, r.pools[id])
			}
		}
	}
}

// walk calls fn for each rule in the chains of a tree, wherever they are.
func (r *reading) walk(i uint8, id treeID, fn func(*rule)) {
	d := r.l.dispatch[i][id]
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		c := r.raw.chain(chainID{i, d.table, name})
		if c == nil || seen[name] {
			return
		}
		seen[name] = true
		for j := range c.rules {
			rule := &c.rules[j]
			if d.isStep(rule.chain) {
				visit(rule.chain)
				continue
			}
			fn(rule)
		}
	}
	visit(d.root)
}

// isStep reports whether a chain is one of the tree.
func (d *dispatch) isStep(chain string) bool {
	return strings.HasPrefix(chain, d.names.prefix+"-"+d.step+"-")
}

// addresses reads a tree of addresses. Each has exactly the rule it should have, or it is not
// counted.
func (r *reading) addresses(i uint8, id treeID, want func(netip.Addr) rule) []netip.Addr {
	var l []netip.Addr
	r.walk(i, id, func(found *rule) {
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

// frontends reads the frontends of a family that are whole, and their pools. Of several with one
// key the first counts.
func (r *reading) frontends(i uint8) {
	seen := map[servicemodel.FrontendKey]bool{}
	for _, id := range [...]treeID{natNodePorts, natServices} {
		r.walk(i, id, func(found *rule) {
			key, ok := r.key(i, id, found)
			if !ok || seen[key] {
				return
			}
			fe, err := comment.Parse(found.comment, key, nil)
			if err != nil || !r.complete(i, fe, found) {
				return
			}
			seen[key] = true
			r.c.Frontends = append(r.c.Frontends, fe)
		})
	}
}

// key returns the frontend that a rule is for.
func (r *reading) key(i uint8, id treeID, found *rule) (servicemodel.FrontendKey, bool) {
	if !found.proto.Valid() || found.ports.from != found.ports.to || found.ports.any() {
		return servicemodel.FrontendKey{}, false
	}
	k := servicemodel.FrontendKey{Protocol: found.proto, Port: found.ports.from}
	if id == natNodePorts {
		k.Addr = nft.Families[i].Any
		return k, !found.dst.IsValid()
	}
	k.Addr = found.dst.Addr()
	return k, found.dst.IsSingleIP()
}

// complete reads what a frontend needs beside its rule: source ranges and pools.
func (r *reading) complete(i uint8, fe *servicemodel.Frontend, found *rule) bool {
	if !r.sources(i, fe, found) {
		return false
	}
	for _, v := range [...]servicemodel.Verdict{fe.Internal, fe.External} {
		if v.Balances() && !r.pool(i, fe, v) {
			return false
		}
	}
	return true
}

// sources reads the source ranges of a frontend, if its rule leads to a chain of such, or if there
// is one in filter.
func (r *reading) sources(i uint8, fe *servicemodel.Frontend, found *rule) bool {
	prefix := r.l.names.prefix + "-" + kindSources + "-"
	chain := found.chain
	if !fe.Internal.Balances() && !fe.External.Balances() {
		chain = r.filterSources(i, fe.Key)
	}
	if !strings.HasPrefix(chain, prefix) {
		return true
	}
	t := nat
	if found.chain != chain {
		t = filter
	}
	c := r.raw.chain(chainID{i, t, chain})
	if c == nil {
		return false
	}
	fe.Sources = []netip.Prefix{}
	for j := range c.rules {
		f := &c.rules[j]
		if f.opaque || f.target != targetGoto && f.target != targetReturn {
			continue
		}
		p := f.src
		if !p.IsValid() {
			p = netip.PrefixFrom(nft.Families[i].Any, 0)
		}
		fe.Sources = append(fe.Sources, p)
	}
	return true
}

// filterSources returns the chain in filter that a frontend's source ranges are in.
func (r *reading) filterSources(i uint8, k servicemodel.FrontendKey) string {
	if k.NodePort() {
		return ""
	}
	d := r.l.dispatch[i][filterSources]
	want := keyRule(k)
	// Down the tree, rather than through all of it: a step leads on if it matches the key.
	name := d.root
	for range maxDepth {
		c := r.raw.chain(chainID{i, filter, name})
		if c == nil {
			return ""
		}
		next := ""
		for j := range c.rules {
			f := &c.rules[j]
			switch {
			case f.dst == want.dst && f.proto == want.proto && f.ports == want.ports &&
				f.target == targetGoto:
				return f.chain
			case d.isStep(f.chain) && f.matchesKey(k) && f.chain != name:
				next = f.chain
			}
		}
		if next == "" {
			return ""
		}
		name = next
	}
	return ""
}

// maxDepth bounds the steps to a key: there cannot be more than bits.
const maxDepth = 19 * 8

// matchesKey reports whether packets to a frontend match r, by address, protocol and port.
func (r *rule) matchesKey(k servicemodel.FrontendKey) bool {
	return (!r.dst.IsValid() || r.dst.Contains(k.Addr)) &&
		(r.proto == 0 || r.proto == k.Protocol) &&
		(r.ports.any() || r.ports.from <= k.Port && k.Port <= r.ports.to)
}

// pool reads the pool that a frontend balances over, unless another frontend's was read before.
func (r *reading) pool(i uint8, fe *servicemodel.Frontend, v servicemodel.Verdict) bool {
	id, _ := fe.Pool(v)
	p, known := r.pools[id]
	if !known {
		kind := kindCluster
		if v == servicemodel.BalanceLocal {
			kind = kindLocal
		}
		p = r.readPool(id, r.raw.chain(chainID{i, nat, r.l.names.service(kind, fe.Service, "")}),
			fe.Affinity > 0)
		r.pools[id] = p
	}
	return p != nil
}

// readPool reads the rules that send to endpoints; the last comes first. With affinity the rules
// that only look for known clients are passed over.
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
