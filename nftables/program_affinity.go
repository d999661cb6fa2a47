package nftables

import (
	"cmp"
	"crypto/sha256"
	"fmt"
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

// Each kind of affinity has its maps of remembered clients. The ordinary one has several, see
// [affinityMap].
const (
	mapPrefixes = "affinity-prefixes" // by the leading bits of a client's address, and frontend
	// The same for outside clients of frontends at which they have other endpoints than pods and
	// the host, whose addresses may be in the same prefix.
	mapPrefixesOutside = "affinity-prefixes-external"
	mapServices        = "affinity-services" // by client and service
)

// in is the name of the map of the clients, or "" for the ordinary ones.
func (a affinity) in() string {
	switch {
	case a.whole:
		return mapServices
	case a.bits > 0:
		return mapPrefixes
	}
	return ""
}

// affinityMapsOf returns the maps of remembered clients that a shape needs.
func affinityMapsOf(f *nft.Family, s *shape) (l []*nft.Set) {
	add := func(name string, key, data []nft.Field, size uint32, comment string) {
		l = append(l, &nft.Set{Name: name, Key: key, Data: data, Size: size, Comment: comment,
			Flags: nft.SetMap | nft.SetTimeout | nft.SetEval})
	}
	uses := func(in string) bool {
		return slices.ContainsFunc(s.affinity, func(a affinity) bool { return a.in() == in })
	}
	frontend, comment := kindService.key(f), "the endpoint a client was given"
	if uses("") {
		for i := range affinityMaps {
			add(affinityMap(i), append(frontend[:len(frontend):len(frontend)], f.Addr),
				endpointFields(f), affinitySize, comment)
		}
	}
	if uses(mapPrefixes) {
		add(mapPrefixes, append([]nft.Field{f.Addr}, frontend...), endpointFields(f),
			affinityMaps*affinitySize, comment)
		if s.has(splitPools) {
			add(mapPrefixesOutside, append([]nft.Field{f.Addr}, frontend...), endpointFields(f),
				affinityMaps*affinitySize, comment)
		}
	}
	if uses(mapServices) {
		add(mapServices, []nft.Field{f.Addr, f.Addr}, []nft.Field{f.Addr},
			affinityMaps*affinitySize, "the endpoint address a client was given")
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
	chainRemembered = "remembered-"
	chainGiven      = "-given"
)

// byClient sends a packet to the chain of the affinity map for the client's address.
func byClient(client nft.Selector, code int32, chain string) nft.Rule {
	verdicts := make([]nft.Verdict, affinityMaps)
	for i := range verdicts {
		verdicts[i] = nft.Verdict{Code: code, Chain: fmt.Sprint(chain, i)}
	}
	return nft.JHashVMap(client, affinitySeed, verdicts)
}

// remember sends packets of remembered clients to their endpoints, in the chain for the packets to
// frontends of a kind.
func (b *builder) remember(c *nft.ProgramChain, k *kind) {
	for _, a := range b.shape.affinityOf(k) {
		switch {
		case a.whole:
			c.Add(b.f.SetDaddr(b.frontend(k).Map(affinityName(k, a))), nft.Jump(b.given(k, a)))
		case a.bits == 0:
			c.Add(b.in(k, setAffinity+a.name()),
				byClient(b.f.Saddr, nft.VerdictJump, chainRemembered))
		}
	}
}

// rememberPrefixes does what remember does, for clients of a prefix that a map remembers.
func (b *builder) rememberPrefixes(c *nft.ProgramChain, k *kind, in string) {
	for _, a := range b.shape.affinityOf(k) {
		if a.in() == mapPrefixes {
			client := nft.Concat{b.f.Prefix(b.f.Saddr, a.bits)}
			c.Add(b.in(k, setAffinity+a.name()),
				b.f.DNAT(client.With(b.frontend(kindService)...).Map(in)))
		}
	}
}

// remembered makes the chains that send a remembered client to its endpoint.
func (b *builder) remembered() {
	if !slices.ContainsFunc(b.shape.affinity, func(a affinity) bool { return a.in() == "" }) {
		return
	}
	key := b.frontend(kindService).With(b.f.Saddr)
	for i := range affinityMaps {
		b.Chain(fmt.Sprint(chainRemembered, i)).Add(b.f.DNAT(key.Map(affinityMap(i))))
	}
}

// given makes the chain that sends a packet to the remembered endpoint address of its service, and
// returns the chain's name. Rules cannot look up the result of a lookup. So the packet itself keeps
// results: its destination is first the number of the service, and then the endpoint address. In
// the end it is what it was, unless the packet is translated. Conntrack knows what it was.
func (b *builder) given(k *kind, a affinity) string {
	name := k.prefix + chainGiven + a.by()
	if b.Has(name) {
		return name
	}
	client := nft.Concat{b.f.Prefix(b.f.Saddr, a.bits)}
	c := b.Chain(name)
	c.Add(b.f.SetDaddr(client.With(b.f.Daddr).Map(mapServices)), nft.Goto(b.byAddress(k, false)))
	c.Add(b.f.ResetDaddr())
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

// learn makes the chains that remember which endpoint a client was given: for each timeout, and of
// the ordinary kind for each map. The key comes from conntrack's original tuple, and the data from
// the packet after DNAT. The counter tells Settle whether a client was remembered while
// it worked.
func (b *builder) learn() {
	f := b.f
	service, nodePort := b.asked()
	endpoint := nft.Concat{f.Daddr, nft.DPort}
	var rules []nft.Rule
	for _, a := range b.shape.affinity {
		timeout := time.Duration(a.seconds) * time.Second
		client := nft.Concat{f.Prefix(f.CTSaddr, a.bits)}
		inService, inNodePort := service.In(affinityName(kindService, a)),
			nodePort.In(affinityName(kindNodePort, a))
		var put nft.Rule
		switch to := chainLearn + a.name(); {
		case a.whole:
			// The packet's source keeps the number of the service for a moment.
			inService = f.SetSaddr(service.Map(affinityName(kindService, a)))
			inNodePort = f.SetSaddr(nodePort.Map(affinityName(kindNodePort, a)))
			c := b.Chain(to)
			c.Add(nft.Update(mapServices, client.With(f.Saddr), timeout, nft.Concat{f.Daddr}),
				nft.Counter)
			c.Add(f.ResetSaddr())
			put = nft.Goto(to)
		case a.bits > 0:
			update := func(in string) nft.Rule {
				return nft.Join(nft.Update(in, client.With(service...), timeout, endpoint),
					nft.Counter)
			}
			if put = update(mapPrefixes); b.shape.has(splitPools) {
				outside := nft.Join(b.f.NotFromPods(b.rules.LocalPods), nft.FIBSaddrNotLocal,
					update(mapPrefixesOutside), nft.Return)
				c := b.Chain(to)
				c.Add(withPorts, service.In(kindService.prefix+setSplit), outside)
				c.Add(withPorts, service.NotIn(kindService.registry),
					nodePort.In(kindNodePort.prefix+setSplit), outside)
				c.Add(withPorts, put)
				put = nft.Goto(to)
			}
		default:
			for i := range affinityMaps {
				b.Chain(fmt.Sprint(to, "-", i)).Add(withPorts, nft.Update(affinityMap(i),
					service.With(f.CTSaddr), timeout, endpoint), nft.Counter)
			}
			put = byClient(f.CTSaddr, nft.VerdictGoto, to+"-")
		}
		rules = append(rules, nft.Join(withPorts, inService, put))
		if b.shape.has(stickyNodePorts) {
			rules = append(rules, nft.Join(withPorts, service.NotIn(kindService.registry),
				inNodePort, put))
		}
	}
	b.Chain(chainLearn).Rules = rules
}

// affinity writes the elements of a frontend's session affinity. The frontend of a whole service
// also has an element for each endpoint.
func (w *writer) affinity(fe *servicemodel.Frontend, internal, external *servicemodel.Pool,
	to sink) {
	a, f := affinityOf(fe), nft.Families[nft.FamilyIndex(fe.Key.Addr)]
	name := w.names.get(kindOf(fe.Key).prefix, setAffinity+a.name(), -1)
	if !a.whole {
		to(name, nft.Elem{Key: w.key})
		return
	}
	w.data = nft.AppendAddr(w.data[:0], serviceID(fe.Service.Name, f))
	to(name, nft.Elem{Key: w.key, Data: w.data})
	w.byAddress(fe, false, internal, to)
	w.byAddress(fe, true, external, to)
}

// byAddress writes the elements that lead from a frontend and the addresses of a pool's endpoints
// to these endpoints. Of endpoints with one address it is the one with the least port.
func (w *writer) byAddress(fe *servicemodel.Frontend, outside bool, p *servicemodel.Pool,
	to sink) {
	if p == nil {
		return
	}
	name := w.names.get(prefixOf(kindOf(fe.Key), outside), setByAddress, -1)
	first := firstByAddress(p)
	for _, s := range p.Slots {
		if a := s.Endpoint.Addr(); first[a] == s.Endpoint {
			w.data = nft.AppendEndpoint(w.data[:0], s.Endpoint)
			to(name, nft.Elem{Key: nft.AppendAddr(w.key, a), Data: w.data})
		}
	}
}

// firstByAddress returns the endpoint of each address in a pool.
func firstByAddress(p *servicemodel.Pool) map[netip.Addr]netip.AddrPort {
	m := map[netip.Addr]netip.AddrPort{}
	for _, ep := range endpointsOf(p) {
		if have, ok := m[ep.Addr()]; !ok || ep.Port() < have.Port() {
			m[ep.Addr()] = ep
		}
	}
	return m
}
