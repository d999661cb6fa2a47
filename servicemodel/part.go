package servicemodel

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// A part of a table is everything that one owner has in it: the frontends and pools of all services
// in one namespace. The owner is the namespace ([Name.Namespace]). Backends keep the namespace in
// the kernel with each frontend, so parts need no separate record. Programs that share a table,
// such as the many processes of a CNI plugin, each replace their own part and leave other parts
// alone.

// TakenError says that a part claims an address and port that another owner already has, or that
// two services of the part claim the same address and port. Between owners, the first owner keeps
// its frontend, including all ports of a range. Kinds do not matter. A node port, and the same port
// number at one address of the node, are different frontends.
type TakenError struct {
	// Key is the key of the holder's frontend. Claim is the key of the claimant's frontend, which
	// differs if one of them is a range of ports that overlaps the other.
	Key, Claim FrontendKey
	// Holder is the service that has the frontend or, within one part, wins it ([Conflict]).
	// Claimant is the other service.
	Holder, Claimant PortName
	// Field is the path of the port in the claimant's service, such as "ports[1].nodePort". It is
	// empty if the claimant's table was not made by [Resolve].
	Field string
}

// Error returns "192.0.2.1:80/tcp is held by a/web, and claimed by b/web", or, for services of the
// same part, "192.0.2.1:80/tcp is claimed by a/web and a/dns". For ranges of ports that overlap, it
// returns "192.0.2.1:80-90/tcp is held by a/web, and overlaps 192.0.2.1:85/tcp, claimed by b/web".
func (e *TakenError) Error() string {
	if e.Holder.Name.Namespace == e.Claimant.Name.Namespace {
		return e.Key.String() + " is claimed by " + e.Holder.String() + " and " +
			e.Claimant.String()
	}

	overlap := ", and "
	if e.Claim != e.Key && e.Claim != (FrontendKey{}) {
		overlap = ", and overlaps " + e.Claim.String() + ", "
	}
	return e.Key.String() + " is held by " + e.Holder.String() + overlap + "claimed by " +
		e.Claimant.String()
}

// Owners returns the owners of frontends, sorted. It costs O(log n) for each owner.
func (t *Table) Owners() iter.Seq[string] {
	owned := t.orEmpty().owned
	return func(yield func(string) bool) {
		next := firstOf("")
		for {
			owner, found := "", false
			for n := range owned.From(next, func(PortName) bool { return true }) {
				owner, found = n.Name.Namespace, true
				break
			}

			if !found || !yield(owner) {
				return
			}
			next = firstOf(owner + "\x00")
		}
	}
}

// firstOf returns a key that sorts before all service ports of a namespace, and after all service
// ports of the preceding namespaces.
func firstOf(namespace string) PortName { return PortName{Name: Name{Namespace: namespace}} }

// frontendsIn returns the frontends of a namespace, and poolsIn its pools.
func (t *Table) frontendsIn(namespace string) iter.Seq[*Frontend] {
	in := func(n PortName) bool { return n.Name.Namespace == namespace }
	return func(yield func(*Frontend) bool) {
		for _, own := range t.owned.From(firstOf(namespace), in) {
			for _, f := range own {
				if !yield(f) {
					return
				}
			}
		}
	}
}

func (t *Table) poolsIn(namespace string) iter.Seq[*Pool] {
	in := func(id PoolID) bool { return id.Service.Name.Namespace == namespace }
	return values(t.pools.From(PoolID{Service: firstOf(namespace)}, in))
}

// Part returns the part of t that belongs to an owner, as a separate table with the rules of t.
// Hairpins of t are included if they are endpoints of the owner.
func (t *Table) Part(owner string) *Table {
	t = t.orEmpty()
	part := &Table{rules: t.rules}
	for f := range t.frontendsIn(owner) {
		part.own(f)
		if f.Kind == ClusterIP && t.HasClusterIP(f.Key.Addr) {
			part.clusterIPs = part.clusterIPs.Set(f.Key.Addr, 1)
		}
	}

	for p := range t.poolsIn(owner) {
		part.pools = part.pools.Set(p.ID, p)
		for _, s := range p.Slots {
			if t.HasHairpin(s.Endpoint.Addr()) {
				part.hairpins = part.hairpins.Set(s.Endpoint.Addr(), 1)
			}
		}
	}

	return part
}

// WithPart returns t with the owner's part replaced by part, see [Table.WithParts].
func (t *Table) WithPart(owner string, part *Table) (*Table, error) {
	return t.WithParts(map[string]*Table{owner: part})
}

// WithParts returns t with the parts of the given owners replaced. Each part is a table of services
// in its owner's namespace, usually the result of [Resolve] for the owner's state; nil is an empty
// part. The parts of other owners do not change, and keep addresses that a replaced part shared
// with them. A frontend may move from one of these owners to another. Endpoints that stay keep
// their slots. The result has the rules of t. If t has no rules because no program has written to
// it yet, the result has the rules of the first owner's part. The result has no health checks and
// no conflicts: only parts have them.
//
// The parts are added in the order of their owners' names. WithParts fails if another owner, whose
// part stays or was added before, already has a frontend of a part, or if two services of a part
// claim the same frontend. It then returns no table, but a joined *[TakenError] for each such
// frontend; the frontends of a part with such an error count as free for the parts after it.
// Between owners, an exact port does not take precedence over a range.
//
// It costs O(log n) for each object of the owners, plus a walk over the frontends at the address of
// each range. If it removes endpoints that may be hairpins of other owners, it also walks the pools
// of these owners.
func (t *Table) WithParts(parts map[string]*Table) (*Table, error) {
	t = t.orEmpty()
	owners := slices.Sorted(maps.Keys(parts))
	next := t.WithoutParts(owners...)
	var errs []error
	for _, owner := range owners {
		part := parts[owner]
		taken := next.taken(part)
		errs = append(errs, taken...)
		if part == nil || len(taken) > 0 {
			continue
		}
		if next.rules.MasqueradeMark == 0 {
			next.rules = part.rules
		}
		for f := range values(part.frontends.All()) {
			if old := t.frontends.At(f.Key); old != nil && old.Equal(f) {
				f = old
			}
			next.own(f)
		}

		for p := range values(part.pools.All()) {
			next.pools = next.pools.Set(p.ID, arrangeSlots(t.pools.At(p.ID), p))
		}
		next.clusterIPs = added(next.clusterIPs, part.ClusterIPs())
		next.hairpins = added(next.hairpins, part.Hairpins())
	}

	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return next, nil
}

// taken returns a *[TakenError] for each frontend of the part that an owner in t holds or that two
// services of the part claim.
func (t *Table) taken(part *Table) (errs []error) {
	for c := range part.Conflicts() {
		errs = append(errs, &TakenError{c.Key, c.Key, c.Winner, c.Loser,
			part.portField(c.Key, c.Loser)})
	}
	for f := range values(part.orEmpty().frontends.All()) {
		for _, held := range t.overlapping(f.Key) {
			errs = append(errs, &TakenError{held.Key, f.Key, held.Service, f.Service,
				part.portField(f.Key, f.Service)})
		}
	}

	return errs
}

// portField returns the field of a service port that claims a frontend.
func (t *Table) portField(k FrontendKey, n PortName) string {
	svc, field := t.service(n.Name), "port"
	if k.NodePort() {
		field = "nodePort"
	}
	for i := 0; svc != nil && i < len(svc.Ports); i++ {
		if p := svc.Ports[i]; p.Name == n.Port && p.Protocol == n.Protocol {
			return fmt.Sprintf("ports[%d].%s", i, field)
		}
	}
	return ""
}

func added(set addrCounts, addrs iter.Seq[netip.Addr]) addrCounts {
	for a := range addrs {
		set = set.Set(a, 1)
	}
	return set
}

// WithoutParts returns the table without the parts of the owners. It costs as much as WithPart.
func (t *Table) WithoutParts(owners ...string) *Table {
	next := *t.orEmpty()
	next.memory, next.contested = nil, pmap.Map[FrontendKey, []*Frontend, keyHash]{}
	next.health = pmap.Map[Name, *HealthCheck, nameHash]{}
	var clusterIPs []netip.Addr
	hairpins := map[netip.Addr]bool{}
	for _, owner := range owners {
		for f := range next.frontendsIn(owner) {
			next.indexRange(f, nil)
			next.frontends = next.frontends.Delete(f.Key)
			next.owned = next.owned.Delete(f.Service)
			if f.Kind == ClusterIP {
				clusterIPs = append(clusterIPs, f.Key.Addr)
			}
		}

		for p := range next.poolsIn(owner) {
			next.pools = next.pools.Delete(p.ID)
			for _, s := range p.Slots {
				if t.HasHairpin(s.Endpoint.Addr()) {
					hairpins[s.Endpoint.Addr()] = true
				}
			}
		}
	}

	for _, a := range clusterIPs {
		isClusterIP := func(f *Frontend) bool { return f.Kind == ClusterIP }
		if !slices.ContainsFunc(slices.Collect(next.frontendsAt(a)), isClusterIP) {
			next.clusterIPs = next.clusterIPs.Delete(a)
		}
	}

	next.leaveOutEndpoints(hairpins)
	for a := range hairpins {
		next.hairpins = next.hairpins.Delete(a)
	}
	return &next
}

// WithRules returns t as if its services had been resolved on a node with these rules. It removes
// frontends at addresses that the rules exclude, and everything that only they use. It cannot add
// frontends that the rules of t exclude, because only a resolution knows them. The result has no
// health checks and no conflicts. It costs O(n).
func (t *Table) WithRules(r Rules) (*Table, error) {
	view, pools := r.view(), map[PoolID]bool{}
	var c Contents
	for f := range t.Frontends() {
		if !view.answers(f.Key.Addr) {
			continue
		}
		own := *f
		own.Masquerade = f.masquerade(&view)
		c.Frontends = append(c.Frontends, &own)
		for _, verdict := range []Verdict{f.Internal, f.External} {
			if id, ok := f.Pool(verdict); ok {
				pools[id] = true
			}
		}
	}

	unused := map[netip.Addr]bool{}
	for a := range t.Hairpins() {
		unused[a] = true
	}
	for p := range t.Pools() {
		if pools[p.ID] {
			c.Pools = append(c.Pools, p)
			for _, s := range p.Slots {
				delete(unused, s.Endpoint.Addr())
			}
		}
	}

	c.Rules = r
	c.Hairpins = filter(slices.Collect(t.Hairpins()), func(a netip.Addr) bool {
		return !unused[a]
	})
	c.ClusterIPs = filter(slices.Collect(t.ClusterIPs()), view.answers)
	return NewTable(c)
}

// leaveOutEndpoints removes the addresses of t's endpoints from a set.
func (t *Table) leaveOutEndpoints(set map[netip.Addr]bool) {
	for _, p := range t.pools.All() {
		if len(set) == 0 {
			return
		}
		for _, s := range p.Slots {
			delete(set, s.Endpoint.Addr())
		}
	}
}

// WithPart returns s with the services and endpoints in the owner's namespace replaced by the
// services and endpoints of part, which must all be in that namespace ([State.ValidatePart]). The
// result has the node of s.
func (s State) WithPart(owner string, part State) State {
	in := func(n Name) bool { return n.Namespace == owner }
	for n, e := range s.entries.From(Name{Namespace: owner}, in) {
		s = s.with(n, e, entry{})
	}
	for n, e := range part.entries.All() {
		s = s.with(n, s.entries.At(n), e)
	}
	return s
}

// ValidatePart reports why the state cannot be the owner's part: the owner is not a valid
// namespace, or services or endpoints are in other namespaces. The error joins a *[FieldError] for
// each problem. For all other problems see [State.Validate].
func (s State) ValidatePart(owner string) error {
	p := problems{kind: "part " + quote(owner)}
	p.checkText("owner", owner, true)
	check := func(kind string, n Name) {
		p.service, p.kind = &n, kind
		if n.Namespace != owner {
			p.add("name.namespace", quote(n.Namespace), "must be the owner, "+quote(owner))
		}
	}

	for n, e := range s.entries.All() {
		if e.service != nil {
			check("service", n)
		}
		if len(e.endpoints) > 0 {
			check("endpoints", n)
		}
	}

	return errors.Join(p.found...)
}

// ValidateUnattended reports the fields that need a program that keeps running: SlowStart, and
// SilentEndpoints if it is [SilentEject]. Parts refuse them, because the programs that write parts
// may end. The error joins a *[FieldError] for each problem.
func (s State) ValidateUnattended() error {
	p := problems{kind: "service"}
	for n, e := range s.entries.All() {
		if p.service = &n; e.service == nil {
			continue
		}
		if e.service.SlowStart > 0 {
			p.add("slowStart", e.service.SlowStart, "must not be set in a part: no program would "+
				"let endpoints grow")
		}
		if e.service.SilentEndpoints == SilentEject {
			p.add("silentEndpoints", SilentEject, "must not be set in a part: no program would "+
				"notice silent endpoints")
		}
	}

	return errors.Join(p.found...)
}

// Adopt returns the state's node with the settings of an instance's node-wide rules. A part must
// use these settings, because the rules belong to the instance. Settings that the node leaves at
// their zero value are adopted. All other settings must agree with the rules; otherwise the error
// joins a *[FieldError] for each setting that differs.
func (s State) Adopt(r Rules) (Node, error) {
	n := s.Node()
	if n.OnlyFamily == 0 {
		n.OnlyFamily = r.OnlyFamily
	}
	own, held := n.rules().fields(), r.fields()
	p := problems{kind: "node"}
	for i, setting := range []struct {
		name string
		set  bool
	}{
		{"masqueradeMark", n.MasqueradeMark != 0},
		{"onlyFamily", n.OnlyFamily != 0},
		{"localPods", !n.LocalPods.equal(PodDetector{})},
		{"nodePortAddresses", n.NodePortAddresses.Primary || len(n.NodePortAddresses.CIDRs) > 0},
		{"serviceCIDRs", len(n.ServiceCIDRs) > 0},
		{"localhostNodePorts", n.LocalhostNodePorts},
		{"masqueradeNeighbours", n.MasqueradeNeighbours},
		{"noEndpoints", n.NoEndpoints != ""},
		{"forbidden", n.Forbidden != ""},
	} {
		if setting.set && own[i] != held[i] {
			p.add(setting.name, orNone(own[i].value), "the instance has "+orNone(held[i].value))
		}
	}

	n.MasqueradeMark, n.LocalPods, n.ServiceCIDRs = r.MasqueradeMark, r.LocalPods, r.ServiceCIDRs
	n.OnlyFamily = r.OnlyFamily
	n.NodePortAddresses = NodePortAddresses{CIDRs: r.NodePorts}
	n.LocalhostNodePorts = r.LocalhostNodePorts && slices.ContainsFunc(r.NodePorts, ofFamily(IPv4))
	n.MasqueradeNeighbours = r.MasqueradeNeighbours
	n.NoEndpoints, n.Forbidden = cmp.Or(r.NoEndpoints, answerReject), r.Forbidden
	return n, errors.Join(p.found...)
}
