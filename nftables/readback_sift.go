package nftables

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/comment"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// sift is the reading of the elements of one table. First the kernel is asked for those that are
// wanted. The number of elements of a set says whether it has others; then it is dumped. What is
// left over after all that is read as if nothing were wanted: see [read].
type sift struct {
	f     *nft.Family
	want  *servicemodel.Table // nil if nothing is
	sets  []*nft.Set
	index map[string]int // of sets, by name
	raw   *rawTable      // is given what is left over
	w     *writer
	findings
	// unread says that a set has elements that were not read.
	unread bool
}

func newSift(f *nft.Family, raw *rawTable, sh *shape, want *servicemodel.Table) *sift {
	s := &sift{f: f, want: want, sets: setsOf(f, sh), raw: raw, w: newWriter()}
	s.index = make(map[string]int, len(s.sets))
	for i, set := range s.sets {
		s.index[set.Name] = i
	}
	s.findings = newFindings(len(s.sets))
	return s
}

func newFindings(sets int) findings {
	return findings{found: make([]int, sets), addrs: map[string][]netip.Addr{}}
}

// position returns where a set is among the sets of the table, -1 if it is not.
func (s *sift) position(set string) int {
	if i, ok := s.index[set]; ok {
		return i
	}
	return -1
}

// isLarge reports whether a set grows with the endpoints rather than with the services.
func isLarge(name string) bool {
	return strings.HasSuffix(name, setEndpoints) || strings.HasSuffix(name, setExternalEps) ||
		name == setHairpins
}

// isRead reports whether the elements of a set say what services there are.
func isRead(name string) bool {
	return !isAffinityMap(name) && !isOwners(name) && !isVersion(name) && name != setSettings
}

// complete reports whether all elements of a set were found.
func (s *sift) complete(set int) bool {
	count, told := s.raw.counts[s.sets[set].Name]
	return told && count == s.found[set]
}

// take takes over what was found.
func (s *sift) take(r *findings) {
	for _, l := range r.left {
		s.raw.add(l.set, l.elem)
	}
	r.left = nil
	s.merge(r)
}

// keyOf returns the frontend that an element of a set is about; false if it is about none.
func (s *sift) keyOf(set int, e nft.Elem) (servicemodel.FrontendKey, bool) {
	nodePort := s.sets[set].Key[0] == nft.FieldProto
	n := 8
	if !nodePort {
		n += s.f.AddrLen
	}
	if len(s.sets[set].Key) < 2 || s.sets[set].Name == setHairpins || len(e.Key) < n {
		return servicemodel.FrontendKey{}, false
	}
	r := nft.Reader{Bytes: e.Key[:n]}
	return r.Frontend(s.f.Any, nodePort), true
}

// expects reports whether an element is one that was asked for.
func (s *sift) expects(set int, e nft.Elem) bool {
	name := s.sets[set].Name
	switch name {
	case setClusterIPs:
		a, ok := addressIn(s.f, name, e)
		return ok && s.want.HasClusterIP(a)
	case setHairpins:
		a, ok := addressIn(s.f, name, e)
		return ok && s.want.HasHairpin(a)
	}
	key, ok := s.keyOf(set, e)
	fe := shared.Of(s.want).Frontend(key)
	if !ok || fe == nil || !unitOf(s.f, s.want, fe.Service).expressible(s.want) {
		return false
	}
	if isLarge(name) {
		internal, external := shared.Of(s.want).PoolsOf(fe)
		p := internal
		if strings.HasSuffix(name, setExternalEps) {
			p = external
		}
		slot := slotIn(e)
		return p != nil && slot < slotCount(p) &&
			bytes.Equal(e.Key, nft.AppendSlot(nft.AppendFrontend(nil, key), slot))
	}
	expected := false
	s.w.frontend(s.want, fe, func(in string, x nft.Elem) {
		expected = expected || in == name && bytes.Equal(x.Key, e.Key) &&
			bytes.Equal(x.KeyEnd, e.KeyEnd)
	})
	return expected
}

// slotIn returns the slot that an element of a map of endpoints is about.
func slotIn(e nft.Elem) int { return int(binary.NativeEndian.Uint32(e.Key[len(e.Key)-4:])) }

// addressIn decodes an element of a set of addresses.
func addressIn(f *nft.Family, set string, e nft.Elem) (netip.Addr, bool) {
	r := nft.Reader{Bytes: e.Key}
	a := r.Addr(f.AddrLen)
	if set == setHairpins && r.Addr(f.AddrLen) != a {
		return a, false
	}
	return a, r.Done()
}

// doubtful returns the units that count as whole although elements are left over that have to do
// with them: more elements of their frontends, or frontends that say that they are of the same
// service port.
func (s *sift) doubtful() []unit {
	if s.want == nil {
		return nil
	}
	doubted := map[servicemodel.PortName]bool{}
	for _, fe := range s.gone {
		doubted[fe.Service] = true
	}
	var l []unit
	doubt := func(port servicemodel.PortName) {
		u := unitOf(s.f, s.want, port)
		if len(u) == 0 || doubted[port] || !u.expressible(s.want) {
			return
		}
		doubted[port] = true
		l = append(l, u)
	}
	for name, elems := range s.raw.elems {
		set := s.position(name)
		if set < 0 || !isRead(name) {
			continue
		}
		for _, e := range elems {
			key, ok := s.keyOf(set, e.Elem)
			if fe := shared.Of(s.want).Frontend(key); ok && fe != nil {
				doubt(fe.Service)
			}
			if name != kindService.registry && name != kindNodePort.registry {
				continue
			}
			if fe, err := comment.Parse(nft.CommentOf(e.UserData), key,
				nil); err == nil {
				doubt(fe.Service)
			}
		}
	}
	return l
}

// doubted takes over what was found of units that were doubtful.
func (s *sift) doubted(units []unit, r *findings) {
	ports := map[servicemodel.PortName]bool{}
	for _, u := range units {
		ports[u[0].Service] = true
	}
	s.pools = slices.DeleteFunc(s.pools, func(c servicemodel.PoolChange) bool {
		return ports[c.Old.ID.Service]
	})
	clear(r.found) // they were counted
	r.pools = nil
	s.take(r)
}

// addSlots adds to a chunk the slots of a frontend that is left over, as many as the sets say that
// it has.
func (s *sift) addSlots(c *chunk, registry string, key []byte) {
	k := kindService
	if registry == kindNodePort.registry {
		k = kindNodePort
	}
	for e, eps := range []string{k.prefix + setEndpoints, k.prefix + setExternalEps} {
		size := k.prefix + []string{setSize, setExternalSize}[e]
		for name, elems := range s.raw.elems {
			n, ok := number(name, size)
			if _, in := elems[string(key)]; !ok || !in {
				continue
			}
			for slot := range n {
				slotKey := nft.AppendSlot(slices.Clip(key), slot)
				if _, have := s.raw.elems[eps][string(slotKey)]; !have {
					c.add(s.position(eps), nft.Elem{Key: slotKey})
				}
			}
		}
	}
}

// unwantedAddrs returns the addresses of endpoints that were found and that are not wanted as
// hairpins.
func (s *sift) unwantedAddrs() []netip.Addr {
	seen := map[netip.Addr]bool{}
	var l []netip.Addr
	note := func(a netip.Addr) {
		if a.IsValid() && !seen[a] && !s.want.HasHairpin(a) {
			seen[a] = true
			l = append(l, a)
		}
	}
	for _, pc := range s.pools {
		for _, slot := range pc.New.Slots {
			note(slot.Endpoint.Addr())
		}
	}
	for _, k := range kinds {
		for _, set := range []string{k.prefix + setEndpoints, k.prefix + setExternalEps} {
			for _, e := range s.raw.elems[set] {
				r := nft.Reader{Bytes: e.Data}
				note(r.Endpoint(s.f.AddrLen).Addr())
			}
		}
	}
	return l
}

// left takes over the elements that were asked for and are there, although they are not wanted.
func (s *sift) left(c *chunk) {
	for i := range c.elems {
		if a := &c.elems[i]; a.found && s.raw.add(s.sets[a.set].Name, cloneElem(a.elem())) {
			s.found[a.set]++
		}
	}
}

// part is what is there of the wanted table in one family.
type part struct {
	gone  []*servicemodel.Frontend
	pools []servicemodel.PoolChange
	addrs map[string][]netip.Addr
}

// assemble returns the table that is in the kernel: what is there of the wanted one, which shares
// its memory with that, and what is left over. A family without a part has nothing of the wanted
// table.
func assemble(want *servicemodel.Table, parts [2]*part, left servicemodel.Contents) (
	*servicemodel.Table, error) {
	if want == nil || parts[0] == nil && parts[1] == nil {
		return servicemodel.NewTable(left)
	}
	if _, err := servicemodel.NewTable(left); err != nil { // a key or an identity twice
		return nil, err
	}
	c := &servicemodel.ChangeSet{}
	if !want.Rules().Equal(left.Rules) {
		c.Rules = &servicemodel.RulesChange{Old: want.Rules(), New: left.Rules}
	}
	for i, f := range nft.Families {
		p := parts[i]
		if p == nil {
			p = nothing(f, want)
		}
		p.subtract(want, c)
	}
	for _, fe := range left.Frontends {
		c.Frontends = append(c.Frontends, servicemodel.FrontendChange{New: fe})
	}
	for _, p := range left.Pools {
		c.Pools = append(c.Pools, servicemodel.PoolChange{New: p})
	}
	for _, a := range left.ClusterIPs {
		c.ClusterIPs = append(c.ClusterIPs, servicemodel.AddrChange{Addr: a, Added: true})
	}
	for _, a := range left.Hairpins {
		c.Hairpins = append(c.Hairpins, servicemodel.AddrChange{Addr: a, Added: true})
	}
	for h := range want.HealthChecks() { // they are not in the kernel
		c.Health = append(c.Health, servicemodel.HealthChange{Old: &h})
	}
	return want.Apply(c), nil
}

// nothing is the part of a family of which nothing is there.
func nothing(f *nft.Family, want *servicemodel.Table) *part {
	p := &part{addrs: map[string][]netip.Addr{}}
	for fe := range shared.Of(want).Frontends() {
		if fe.Key.Family() == f.Model {
			p.gone = append(p.gone, fe)
		}
	}
	for a := range want.ClusterIPs() {
		if servicemodel.FamilyOf(a) == f.Model {
			p.addrs[setClusterIPs] = append(p.addrs[setClusterIPs], a)
		}
	}
	for a := range want.Hairpins() {
		if servicemodel.FamilyOf(a) == f.Model {
			p.addrs[setHairpins] = append(p.addrs[setHairpins], a)
		}
	}
	return p
}

// subtract takes away from the wanted table what is not there.
func (p *part) subtract(want *servicemodel.Table, c *servicemodel.ChangeSet) {
	c.Pools = append(c.Pools, p.pools...)
	for _, fe := range p.gone {
		c.Frontends = append(c.Frontends, servicemodel.FrontendChange{Old: fe})
		internal, external := shared.Of(want).PoolsOf(fe)
		for _, pool := range []*servicemodel.Pool{internal, external} {
			if pool != nil { // all frontends of its unit are gone
				c.Pools = append(c.Pools, servicemodel.PoolChange{Old: pool})
			}
		}
	}
	for _, a := range p.addrs[setClusterIPs] {
		c.ClusterIPs = append(c.ClusterIPs, servicemodel.AddrChange{Addr: a})
	}
	for _, a := range p.addrs[setHairpins] {
		c.Hairpins = append(c.Hairpins, servicemodel.AddrChange{Addr: a})
	}
}
