package form

import (
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
)

// Names of the chains of session affinity, without the number of the map.
const (
	ChainLearn      = "learn"
	chainRemembered = "remembered"
	chainGiven      = "-given"
)

// byClient sends a packet to the chain for the map of its client. chain is the chain's name without
// the number of the map.
func (b *builder) byClient(addr nft.Selector, a Affinity, code int32, chain string) nft.Rule {
	verdicts := make([]nft.Verdict, AffinityMaps)
	for i := range verdicts {
		verdicts[i] = nft.Verdict{Code: code, Chain: AffinityMap(chain, i)}
	}
	return nft.JHashVMap(b.f.Prefix(addr, a.Bits), affinitySeed, verdicts)
}

// remember sends packets of clients that a group remembers to their endpoints. c is the chain for
// the packets to frontends of a kind, or for packets of their outside clients. Without a prefix,
// the addresses of outside clients differ from all other clients, and both are in one group.
func (b *builder) remember(c *nft.ProgramChain, k *Kind, group string) {
	for _, a := range b.shape.affinityOf(k) {
		from := group
		if a.Bits == 0 {
			from = GroupClients
		}
		if k == KindRange {
			from = groupRanges
		}
		switch {
		case a.Whole != (group == GroupServices):
		case a.Whole:
			c.Add(b.f.SetDaddr(b.frontend(k).Map(affinityName(k, a))), nft.Jump(b.given(k, a)))
		default:
			c.Add(b.in(k, SetAffinity+a.name()),
				b.byClient(b.f.Saddr, a, nft.VerdictJump, b.remembered(k, a, from)))
		}
	}
}

// remembered builds the chains that send a remembered client to its endpoint, unless they exist,
// and returns their names without the number of the map.
func (b *builder) remembered(k *Kind, a Affinity, group string) string {
	if k == KindNodePort {
		k = KindService // entries have the address of the node
	}
	name := chainRemembered + strings.TrimPrefix(group, GroupClients) + a.by()
	if b.Has(AffinityMap(name, 0)) {
		return name
	}
	key := nft.Concat{b.f.Prefix(b.f.Saddr, a.Bits)}.With(b.frontend(k)...)
	if k == KindRange {
		key = b.rangeClient(b.f.Saddr, b.f.Daddr)
	}
	for i := range AffinityMaps {
		b.translate(b.Chain(AffinityMap(name, i)), k, key.Map(AffinityMap(group, i)))
	}
	return name
}

// given builds the chains that send a packet to the remembered endpoint address of its service,
// unless they exist, and returns the name of the first chain. Rules cannot look up the result of a
// lookup. So the packet itself stores results: its destination is first the ID of the service, and
// then the endpoint address. If the packet is not translated, the last rule restores the
// destination from conntrack.
func (b *builder) given(k *Kind, a Affinity) string {
	name := k.Prefix + chainGiven + a.by()
	if b.Has(name) {
		return name
	}
	b.Chain(name).Add(b.byClient(b.f.Saddr, a, nft.VerdictGoto, name))
	key := nft.Concat{b.f.Prefix(b.f.Saddr, a.Bits)}.With(b.f.Daddr)
	for i := range AffinityMaps {
		c := b.Chain(AffinityMap(name, i))
		c.Add(b.f.SetDaddr(key.Map(AffinityMap(GroupServices, i))),
			nft.Goto(b.byAddress(k, false)))
		c.Add(b.f.ResetDaddr())
	}

	return name
}

// byAddress builds the chain that sends a packet to the endpoint with the address in the packet's
// destination, unless the chain exists, and returns the chain's name.
func (b *builder) byAddress(k *Kind, outside bool) string {
	name := PrefixOf(k, outside) + setByAddress
	if b.Has(name) {
		return name
	}
	frontend := b.frontend(k)
	if k == KindService {
		frontend = nft.Concat{b.f.CTDaddr}.With(b.frontend(KindNodePort)...)
	}
	c := b.Chain(name)
	if b.shape.Has(SplitPools) && !outside {
		c.Add(frontend.In(k.Prefix+SetSplit), b.f.NotFromPods(b.rules.LocalPods),
			nft.FIBSaddrNotLocal, nft.Goto(b.byAddress(k, true)))
	}

	c.Add(b.f.DNAT(frontend.With(b.f.Daddr).Map(name)))
	c.Add(b.f.ResetDaddr())
	return name
}

// learn builds the chains that remember which endpoint a client got, for each kind of affinity and
// each map. The key comes from conntrack's original tuple, and the data from the packet after DNAT.
// The counter tells Settle whether a client was remembered during its work.
func (b *builder) learn() {
	service, nodePort := b.original()
	var rules []nft.Rule
	for _, a := range b.shape.Affinity {
		to := ChainLearn + a.name()
		for i := range AffinityMaps {
			b.learnIn(b.Chain(AffinityMap(to, i)), a, i)
		}
		put := b.byClient(b.f.CTSaddr, a, nft.VerdictGoto, to)

		inService, inNodePort := service.In(affinityName(KindService, a)),
			nodePort.In(affinityName(KindNodePort, a))
		if a.Whole { // the packet's source stores the ID of the service for a moment
			inService = b.f.SetSaddr(service.Map(affinityName(KindService, a)))
			inNodePort = b.f.SetSaddr(nodePort.Map(affinityName(KindNodePort, a)))
		}

		rules = append(rules, nft.Join(withPorts, inService, put))
		if b.shape.Has(StickyNodePorts) {
			rules = append(rules, nft.Join(withPorts, service.NotIn(KindService.Registry),
				inNodePort, put))
		}
	}

	if len(b.shape.affinityOf(KindRange)) > 0 {
		rules = append([]nft.Rule{nft.Join(withPorts, service.NotIn(KindService.Registry),
			b.f.CTDaddr.In(SetRangeAddresses), nft.Jump(chainLearnRanges))}, rules...)
	}

	b.Chain(ChainLearn).Rules = rules
}

// update returns the rule that remembers a client in a map.
func (b *builder) update(name string, key nft.Concat, a Affinity, data nft.Concat) nft.Rule {
	return nft.Join(nft.Update(name, key, time.Duration(a.Seconds)*time.Second, data), nft.Counter)
}

// learnIn writes the rules that remember a client in the i-th map.
func (b *builder) learnIn(c *nft.ProgramChain, a Affinity, i int) {
	service, nodePort := b.original()
	client := nft.Concat{b.f.Prefix(b.f.CTSaddr, a.Bits)}
	update := func(group string, by, data nft.Concat) nft.Rule {
		return b.update(AffinityMap(group, i), client.With(by...), a, data)
	}
	if a.Whole {
		c.Add(update(GroupServices, nft.Concat{b.f.Saddr}, nft.Concat{b.f.Daddr}))
		c.Add(b.f.ResetSaddr())
		return
	}

	endpoint := nft.Concat{b.f.Daddr, nft.DPort}
	if a.Bits > 0 && b.shape.Has(SplitPools) {
		outside := nft.Join(b.f.NotFromPods(b.rules.LocalPods), nft.FIBSaddrNotLocal,
			update(groupOutside, service, endpoint), nft.Return)
		c.Add(withPorts, service.In(KindService.Prefix+SetSplit), outside)
		c.Add(withPorts, service.NotIn(KindService.Registry),
			nodePort.In(KindNodePort.Prefix+SetSplit), outside)
	}

	c.Add(withPorts, update(GroupClients, service, endpoint))
}
