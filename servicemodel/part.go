package servicemodel

import (
	"errors"
	"iter"
	"net/netip"

	"github.com/kernlb/kernlb/internal/persist"
)

// A part of a table is what one owner holds of it: the frontends and pools of all services in one
// namespace. The owner is the namespace ([Name.Namespace]), which backends keep in the kernel with
// each frontend, so that parts need no record of their own. Programs that share a table, such as
// the many processes of a CNI plugin, each replace their own part and leave the others alone.

// TakenError says that a part claims an address and port that another owner holds. Owners do not
// take frontends from one another, whatever their kinds: who came first keeps it. A node port, and
// the same number at one address of the node, are different frontends.
type TakenError struct {
	Key FrontendKey
	// Holder has the frontend, and Claimant, of another namespace, asks for it.
	Holder, Claimant PortName
}

// Error returns "192.0.2.1:80/tcp is held by a/web, and claimed by b/web".
func (e *TakenError) Error() string {
	return e.Key.String() + " is held by " + e.Holder.String() + ", and claimed by " +
		e.Claimant.String()
}

// Owners returns the owners of frontends, sorted. It costs O(log n) for each of them.
func (t *Table) Owners() iter.Seq[string] {
	owned := t.orEmpty().owned
	return func(yield func(string) bool) {
		next := firstOf("")
		for {
			owner, found := "", false
			for n := range owned.From(next) {
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

// firstOf sorts before all service ports of a namespace, and after those of the namespaces before.
func firstOf(namespace string) PortName { return PortName{Name: Name{Namespace: namespace}} }

// frontendsIn returns the frontends of a namespace, and poolsIn its pools.
func (t *Table) frontendsIn(namespace string) iter.Seq[*Frontend] {
	return func(yield func(*Frontend) bool) {
		for n, own := range t.owned.From(firstOf(namespace)) {
			if n.Name.Namespace != namespace {
				return
			}
			for _, f := range own {
				if !yield(f) {
					return
				}
			}
		}
	}
}

func (t *Table) poolsIn(namespace string) iter.Seq[*Pool] {
	return func(yield func(*Pool) bool) {
		for id, p := range t.pools.From(PoolID{Service: firstOf(namespace)}) {
			if id.Service.Name.Namespace != namespace || !yield(p) {
				return
			}
		}
	}
}

// Part returns what an owner holds of t, as a table of its own with the rules of t. Its hairpins
// are those of t that are endpoints of the owner.
func (t *Table) Part(owner string) *Table {
	t = t.orEmpty()
	part := &Table{rules: t.rules}
	for f := range t.frontendsIn(owner) {
		part.frontends = part.frontends.Set(f.Key, f)
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

// WithPart returns t with what the owner holds replaced by part, a table of services in the
// namespace of that name, such as [Resolve] makes of the owner's state; nil holds nothing. What
// others hold stays as it is, and so do addresses that others need, too. The result has the rules
// of t, or those of part if t has none, as a table that nobody has written to. Endpoints that stay
// keep their slots. It knows no health checks and no conflicts: those of the part are in part.
//
// If others hold frontends of the part, it returns no table, and a *[TakenError] for each of them,
// joined.
//
// It costs O(log n) for each object of the owner. Where endpoints go that may be hairpins of
// others, it looks at the pools of others, too.
func (t *Table) WithPart(owner string, part *Table) (*Table, error) {
	if err := t.taken(owner, part); err != nil {
		return nil, err
	}
	like := t.orEmpty()
	next := t.WithoutParts(owner)
	if part == nil {
		return next, nil
	}
	if next.rules.MasqueradeMark == 0 {
		next.rules = part.rules
	}
	for f := range values(part.orEmpty().frontends.All()) {
		if old := like.frontend(f.Key); old != nil && old.Equal(f) {
			f = old
		}
		next.frontends = next.frontends.Set(f.Key, f)
		next.own(f)
	}
	for p := range values(part.orEmpty().pools.All()) {
		next.pools = next.pools.Set(p.ID, arrangeSlots(like.pool(p.ID), p))
	}
	next.clusterIPs = added(next.clusterIPs, part.ClusterIPs())
	next.hairpins = added(next.hairpins, part.Hairpins())
	return next, nil
}

// taken returns what others hold of the frontends of a part.
func (t *Table) taken(owner string, part *Table) error {
	var errs []error
	for f := range values(part.orEmpty().frontends.All()) {
		held := t.frontend(f.Key)
		if held != nil && held.Service.Name.Namespace != owner {
			errs = append(errs, &TakenError{Key: f.Key, Holder: held.Service, Claimant: f.Service})
		}
	}
	return errors.Join(errs...)
}

func added(set addrCounts, addrs iter.Seq[netip.Addr]) addrCounts {
	for a := range addrs {
		set = set.Set(a, 1)
	}
	return set
}

// WithoutParts returns t without what the owners hold, at the cost of [Table.WithPart].
func (t *Table) WithoutParts(owners ...string) *Table {
	next := *t.orEmpty()
	next.memory, next.losers = nil, persist.Map[claimKey, *Frontend, claimOrder]{}
	next.health = persist.Map[Name, HealthCheck, nameOrder]{}
	var clusterIPs []netip.Addr
	hairpins := map[netip.Addr]bool{}
	for _, owner := range owners {
		for f := range next.frontendsIn(owner) {
			next.frontends = next.frontends.Delete(f.Key)
			next.owned = next.owned.Delete(f.Service)
			if f.Kind == ClusterIP {
				clusterIPs = append(clusterIPs, f.Key.Addr)
			}
		}
		for p := range next.poolsIn(owner) {
			next.pools = next.pools.Delete(p.ID)
			for _, s := range p.Slots {
				if next.HasHairpin(s.Endpoint.Addr()) {
					hairpins[s.Endpoint.Addr()] = true
				}
			}
		}
	}
	for _, a := range clusterIPs {
		if !next.answersAt(a) {
			next.clusterIPs = next.clusterIPs.Delete(a)
		}
	}
	next.forget(hairpins)
	return &next
}

// answersAt reports whether an address is the cluster IP of a frontend.
func (t *Table) answersAt(a netip.Addr) bool {
	for k, f := range t.frontends.From(FrontendKey{Addr: a}) {
		if k.Addr != a {
			return false
		}
		if f.Kind == ClusterIP {
			return true
		}
	}
	return false
}

// forget takes those addresses out of the hairpins that are no longer endpoints.
func (t *Table) forget(hairpins map[netip.Addr]bool) {
	if len(hairpins) == 0 {
		return
	}
	for _, p := range t.pools.All() {
		for _, s := range p.Slots {
			delete(hairpins, s.Endpoint.Addr())
		}
		if len(hairpins) == 0 {
			return
		}
	}
	for a := range hairpins {
		t.hairpins = t.hairpins.Delete(a)
	}
}

// WithPart returns s with the services and endpoints in the namespace of an owner replaced by those
// of part, which must be in that namespace. The node is that of s.
func (s State) WithPart(owner string, part State) State {
	first := Name{Namespace: owner}
	for n := range s.services.From(first) {
		if n.Namespace != owner {
			break
		}
		s.services = s.services.Delete(n)
	}
	for n := range s.endpoints.From(first) {
		if n.Namespace != owner {
			break
		}
		s.endpoints = s.endpoints.Delete(n)
	}
	for n, svc := range part.services.All() {
		s.services = s.services.Set(n, svc)
	}
	for n, eps := range part.endpoints.All() {
		s.endpoints = s.endpoints.Set(n, eps)
	}
	return s
}

// ValidatePart reports what makes s no state of a part: an owner that is no namespace, and services
// and endpoints in other namespaces, joined, each a *[FieldError]. It does not look at what else
// may be wrong with them: see [State.Validate].
func (s State) ValidatePart(owner string) error {
	p := problems{object: func() string { return "part " + quote(owner) }}
	if reason := checkText(owner); owner == "" {
		p.add("owner", nil, "required")
	} else if reason != "" {
		p.add("owner", quote(owner), reason)
	}
	check := func(object string, n Name) {
		if n.Namespace != owner {
			p.service, p.object = n, func() string { return object + n.String() }
			p.add("name.namespace", quote(n.Namespace), "must be the owner, "+quote(owner))
		}
	}
	for n := range s.services.All() {
		check("service ", n)
	}
	for n := range s.endpoints.All() {
		check("endpoints ", n)
	}
	return errors.Join(p.found...)
}

// Adopt returns n with the settings of the node-wide rules that an instance holds, as a part sees
// its node: rules belong to the instance, not to a part. What n leaves at its zero value is
// adopted; what n sets must mean what the rules say. Otherwise the error joins a *[FieldError] for
// each setting that differs.
func (n Node) Adopt(r Rules) (Node, error) {
	own, held := n.rules().fields(), r.fields()
	p := problems{object: func() string { return "node" }}
	for i, setting := range []struct {
		name string
		set  bool
	}{
		{"masqueradeMark", n.MasqueradeMark != 0},
		{"localPods", !n.LocalPods.equal(PodDetector{})},
		{"nodePortAddresses", n.NodePortAddresses.Primary || len(n.NodePortAddresses.CIDRs) > 0},
		{"serviceCIDRs", len(n.ServiceCIDRs) > 0},
		{"localhostNodePorts", n.LocalhostNodePorts},
		{"masqueradeNeighbours", n.MasqueradeNeighbours},
	} {
		if setting.set && own[i] != held[i] {
			p.add(setting.name, orNone(own[i].value), "the instance has "+orNone(held[i].value))
		}
	}
	n.MasqueradeMark, n.LocalPods, n.ServiceCIDRs = r.MasqueradeMark, r.LocalPods, r.ServiceCIDRs
	n.NodePortAddresses = NodePortAddresses{CIDRs: r.NodePorts}
	n.LocalhostNodePorts = r.LocalhostNodePorts
	n.MasqueradeNeighbours = r.MasqueradeNeighbours
	return n, errors.Join(p.found...)
}
