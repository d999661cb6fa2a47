package nftables

import (
	"cmp"
	"crypto/sha256"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// affinity is a kind of session affinity that some frontends have.
type affinity struct {
	seconds uint32
	bits    uint8 // how many bits of an address identify a client, 0 for all
	whole   bool  // a client has one endpoint address at all ports of a service
}

func affinityOf(fe *servicemodel.Frontend) affinity {
	return affinity{uint32(fe.Affinity / time.Second), fe.AffinityBits, fe.AffinityService}
}

func (a affinity) compare(o affinity) int {
	whole := func(a affinity) int {
		if a.whole {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(whole(a), whole(o)), cmp.Compare(a.bits, o.bits),
		cmp.Compare(a.seconds, o.seconds))
}

// Words in the names of sets and chains of an affinity.
const (
	wordBits  = "-by-"
	wordWhole = "-whole"
)

// by is the part of a name that says how a client is identified.
func (a affinity) by() string {
	if a.bits == 0 {
		return ""
	}
	return wordBits + strconv.Itoa(int(a.bits))
}

// name is the end of the names of sets and chains, such as "-60", "-60-by-24" or "-60-whole".
func (a affinity) name() string {
	name := "-" + strconv.FormatUint(uint64(a.seconds), 10) + a.by()
	if a.whole {
		name += wordWhole
	}
	return name
}

// parseAffinity is the inverse of name.
func parseAffinity(name string) (a affinity, ok bool) {
	rest, whole := strings.CutSuffix(name, wordWhole)
	seconds, bits, _ := strings.Cut(rest, wordBits)
	n, _ := strconv.ParseUint(strings.TrimPrefix(seconds, "-"), 10, 31)
	b, _ := strconv.ParseUint(bits, 10, 8)
	a = affinity{uint32(n), uint8(b), whole}
	return a, n > 0 && a.name() == name
}

// Clients are remembered in groups of maps. A hash of the client's leading bits selects the map in
// its group: see [affinityMap].
const (
	groupClients = "affinity" // by the leading bits of a client's address, and frontend
	// The same for outside clients of frontends at which they have other endpoints than pods and
	// the host, if prefixes are remembered: their addresses may be in the same prefix.
	groupOutside  = "affinity-external"
	groupServices = "affinity-services" // by client and service
)

// group is the group of maps of the clients.
func (a affinity) group() string {
	if a.whole {
		return groupServices
	}
	return groupClients
}

// affinityMap is the name of the i-th map of a group.
func affinityMap(group string, i int) string { return group + "-" + strconv.Itoa(i) }

// affinityGroups returns the groups of maps that a shape needs.
func (s *shape) affinityGroups() (l []string) {
	for _, a := range s.affinity {
		l = insert(l, a.group(), strings.Compare)
		if a.bits > 0 && !a.whole && s.has(splitPools) {
			l = insert(l, groupOutside, strings.Compare)
		}
	}
	return l
}

// affinityMapsOf returns the maps of remembered clients that a shape needs.
func affinityMapsOf(f *nft.Family, s *shape) (l []*nft.Set) {
	for _, group := range s.affinityGroups() {
		key, data := append([]nft.Field{f.Addr}, kindService.key(f)...), endpointFields(f)
		if group == groupServices {
			key, data = []nft.Field{f.Addr, f.Addr}, []nft.Field{f.Addr}
		}
		for i := range affinityMaps {
			l = append(l, &nft.Set{Name: affinityMap(group, i), Key: key, Data: data,
				Size: affinitySize, Flags: nft.SetMap | nft.SetTimeout | nft.SetEval,
				Comment: "what clients were given"})
		}
	}
	return l
}

// serviceID stands for a service in the map of whole services. It has the form of an address. Two
// services with one number would share their clients' endpoints, as far as they have the same ones.
func serviceID(of servicemodel.Name, f *nft.Family) netip.Addr {
	sum := sha256.Sum256([]byte(of.String()))
	a, _ := netip.AddrFromSlice(sum[:f.AddrLen])
	return a
}

// setByAddress is the end of the name of a map from a frontend with a whole service's affinity, and
// an endpoint address, to the endpoint.
const setByAddress = "-by-address"

// Names of the chains of session affinity, without the number of the map.
const (
	chainLearn      = "learn"
	chainRemembered = "remembered"
	chainGiven      = "-given"
)

// byClient sends a packet to the chain for the map of its client. chain is the chain's name without
// the number of the map.
func (b *builder) byClient(addr nft.Selector, a affinity, code int32, chain string) nft.Rule {
	verdicts := make([]nft.Verdict, affinityMaps)
	for i := range verdicts {
		verdicts[i] = nft.Verdict{Code: code, Chain: affinityMap(chain, i)}
	}
	return nft.JHashVMap(b.f.Prefix(addr, a.bits), affinitySeed, verdicts)
}

// remember sends packets of clients that a group remembers to their endpoints, in the chain for the
// packets to frontends of a kind, or of outside clients to these. Without a prefix, the addresses
// of outside clients differ from the others, and both are in one group.
func (b *builder) remember(c *nft.ProgramChain, k *kind, group string) {
	for _, a := range b.shape.affinityOf(k) {
		from := group
		if a.bits == 0 {
			from = groupClients
		}
		switch {
		case a.whole != (group == groupServices):
		case a.whole:
			c.Add(b.f.SetDaddr(b.frontend(k).Map(affinityName(k, a))), nft.Jump(b.given(k, a)))
		default:
			c.Add(b.in(k, setAffinity+a.name()),
				b.byClient(b.f.Saddr, a, nft.VerdictJump, b.remembered(a, from)))
		}
	}
}

// remembered makes the chains that send a remembered client to its endpoint, unless there are some,
// and returns their names without the number of the map.
func (b *builder) remembered(a affinity, group string) string {
	name := chainRemembered + strings.TrimPrefix(group, groupClients) + a.by()
	if b.Has(affinityMap(name, 0)) {
		return name
	}
	key := nft.Concat{b.f.Prefix(b.f.Saddr, a.bits)}.With(b.frontend(kindService)...)
	for i := range affinityMaps {
		b.Chain(affinityMap(name, i)).Add(b.f.DNAT(key.Map(affinityMap(group, i))))
	}
	return name
}

// given makes the chains that send a packet to the remembered endpoint address of its service,
// unless there are some, and returns the name of the first one. Rules cannot look up the result of
// a lookup. So the packet itself keeps results: its destination is first the number of the service,
// and then the endpoint address. In the end it is what it was, unless the packet is translated.
// Conntrack knows what it was.
func (b *builder) given(k *kind, a affinity) string {
	name := k.prefix + chainGiven + a.by()
	if b.Has(name) {
		return name
	}
	b.Chain(name).Add(b.byClient(b.f.Saddr, a, nft.VerdictGoto, name))
	key := nft.Concat{b.f.Prefix(b.f.Saddr, a.bits)}.With(b.f.Daddr)
	for i := range affinityMaps {
		c := b.Chain(affinityMap(name, i))
		c.Add(b.f.SetDaddr(key.Map(affinityMap(groupServices, i))),
			nft.Goto(b.byAddress(k, false)))
		c.Add(b.f.ResetDaddr())
	}
	return name
}

// byAddress makes the chain that sends a packet to the endpoint whose address it has, unless there
// is one, and returns the chain's name.
func (b *builder) byAddress(k *kind, outside bool) string {
	name := prefixOf(k, outside) + setByAddress
	if b.Has(name) {
		return name
	}
	frontend := b.frontend(k)
	if k == kindService {
		frontend = nft.Concat{b.f.CTDaddr}.With(b.frontend(kindNodePort)...)
	}
	c := b.Chain(name)
	if b.shape.has(splitPools) && !outside {
		c.Add(frontend.In(k.prefix+setSplit), b.f.NotFromPods(b.rules.LocalPods),
			nft.FIBSaddrNotLocal, nft.Goto(b.byAddress(k, true)))
	}
	c.Add(b.f.DNAT(frontend.With(b.f.Daddr).Map(name)))
	c.Add(b.f.ResetDaddr())
	return name
}

// withPorts matches the protocols that have ports. Without it, nft 1.0.6 cannot load a
// concatenation with ct proto-dst from text. The protocols are an anonymous set, because from
// another set nft does not learn the types that it needs.
var withPorts = nft.CTProtocol(servicemodel.TCP, servicemodel.UDP, servicemodel.SCTP)

// learn makes the chains that remember which endpoint a client was given, for each kind of affinity
// and each map. The key comes from conntrack's original tuple, and the data from the packet after
// DNAT. The counter tells Settle whether a client was remembered while it worked.
func (b *builder) learn() {
	service, nodePort := b.asked()
	var rules []nft.Rule
	for _, a := range b.shape.affinity {
		to := chainLearn + a.name()
		for i := range affinityMaps {
			b.learnIn(b.Chain(affinityMap(to, i)), a, i)
		}
		put := b.byClient(b.f.CTSaddr, a, nft.VerdictGoto, to)

		inService, inNodePort := service.In(affinityName(kindService, a)),
			nodePort.In(affinityName(kindNodePort, a))
		if a.whole { // the packet's source keeps the number of the service for a moment
			inService = b.f.SetSaddr(service.Map(affinityName(kindService, a)))
			inNodePort = b.f.SetSaddr(nodePort.Map(affinityName(kindNodePort, a)))
		}
		rules = append(rules, nft.Join(withPorts, inService, put))
		if b.shape.has(stickyNodePorts) {
			rules = append(rules, nft.Join(withPorts, service.NotIn(kindService.registry),
				inNodePort, put))
		}
	}
	b.Chain(chainLearn).Rules = rules
}

// learnIn writes the rules that remember a client in the i-th map.
func (b *builder) learnIn(c *nft.ProgramChain, a affinity, i int) {
	service, nodePort := b.asked()
	client := nft.Concat{b.f.Prefix(b.f.CTSaddr, a.bits)}
	update := func(group string, by, data nft.Concat) nft.Rule {
		return nft.Join(nft.Update(affinityMap(group, i), client.With(by...),
			time.Duration(a.seconds)*time.Second, data), nft.Counter)
	}
	if a.whole {
		c.Add(update(groupServices, nft.Concat{b.f.Saddr}, nft.Concat{b.f.Daddr}))
		c.Add(b.f.ResetSaddr())
		return
	}

	endpoint := nft.Concat{b.f.Daddr, nft.DPort}
	if a.bits > 0 && b.shape.has(splitPools) {
		outside := nft.Join(b.f.NotFromPods(b.rules.LocalPods), nft.FIBSaddrNotLocal,
			update(groupOutside, service, endpoint), nft.Return)
		c.Add(withPorts, service.In(kindService.prefix+setSplit), outside)
		c.Add(withPorts, service.NotIn(kindService.registry),
			nodePort.In(kindNodePort.prefix+setSplit), outside)
	}
	c.Add(withPorts, update(groupClients, service, endpoint))
}

// affinity writes the element of a frontend's session affinity.
func (w *writer) affinity(fe *servicemodel.Frontend, to sink) {
	e := nft.Elem{Key: w.key}
	if fe.AffinityService {
		f := nft.Families[nft.FamilyIndex(fe.Key.Addr)]
		w.data = nft.AppendAddr(w.data[:0], serviceID(fe.Service.Name, f))
		e.Data = w.data
	}
	to(w.names.get(kindOf(fe.Key).prefix, setAffinity+affinityOf(fe).name(), -1), e)
}

// byAddress writes the elements that differ between the pools old and new, and that lead from the
// frontend of a whole service and the addresses of endpoints to these endpoints.
func (w *writer) byAddress(fe *servicemodel.Frontend, outside bool, old, new *servicemodel.Pool,
	del, add sink) {
	if old == nil && new == nil {
		return
	}
	name := w.names.get(prefixOf(kindOf(fe.Key), outside), setByAddress, -1)
	w.key = nft.AppendFrontend(w.key[:0], fe.Key)
	write := func(to sink, ep netip.AddrPort) {
		if ep.IsValid() {
			w.data = nft.AppendEndpoint(w.data[:0], ep)
			to(name, nft.Elem{Key: nft.AppendAddr(w.key, ep.Addr()), Data: w.data})
		}
	}
	for _, c := range w.poolChange(old, new).byAddress() {
		write(del, c.old)
		write(add, c.new)
	}
}

// poolChange is the difference of two pools. The frontends of a service port share it.
type poolChange struct {
	old, new  *servicemodel.Pool
	lost      []netip.AddrPort // the endpoints that are in old and not in new
	addresses []addressChange
}

// addressChange is an address whose endpoint differs between two pools: among endpoints with one
// address, the one with the least port. An invalid endpoint means none.
type addressChange struct{ old, new netip.AddrPort }

// poolChange returns the difference of two pools. The writer keeps the last ones, because the
// frontends of a service follow one another.
func (w *writer) poolChange(old, new *servicemodel.Pool) *poolChange {
	for _, c := range w.changes {
		if c != nil && c.old == old && c.new == new {
			return c
		}
	}
	c := &poolChange{old: old, new: new, lost: without(old, new)}
	copy(w.changes[1:], w.changes[:])
	w.changes[0] = c
	return c
}

// byAddress returns the addresses whose endpoint differs.
func (c *poolChange) byAddress() []addressChange {
	if c.addresses != nil {
		return c.addresses
	}
	at := map[netip.Addr]int{}
	for _, ep := range slices.Concat(c.lost, without(c.new, c.old)) {
		if _, ok := at[ep.Addr()]; !ok {
			at[ep.Addr()] = len(at)
		}
	}
	l := make([]addressChange, len(at))
	least := func(p *servicemodel.Pool, of func(*addressChange) *netip.AddrPort) {
		if p == nil || len(at) == 0 {
			return
		}
		for i := range p.Slots {
			ep := p.Slots[i].Endpoint
			if i, ok := at[ep.Addr()]; ok {
				if e := of(&l[i]); !e.IsValid() || ep.Port() < e.Port() {
					*e = ep
				}
			}
		}
	}
	least(c.old, func(a *addressChange) *netip.AddrPort { return &a.old })
	least(c.new, func(a *addressChange) *netip.AddrPort { return &a.new })
	c.addresses = slices.DeleteFunc(l, func(a addressChange) bool { return a.old == a.new })
	return c.addresses
}
