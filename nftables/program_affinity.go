package nftables

import (
	"fmt"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Names of the chains of session affinity, without the number of the map.
const (
	chainLearn      = "learn"
	chainRemembered = "remembered-"
)

// byClient sends a packet to the chain of the affinity map for the client's address.
func byClient(client nft.Selector, code int32, chain string) nft.Rule {
	verdicts := make([]nft.Verdict, affinityMaps)
	for i := range verdicts {
		verdicts[i] = nft.Verdict{Code: code, Chain: fmt.Sprint(chain, i)}
	}
	return nft.JHashVMap(client, affinitySeed, verdicts)
}

// remembered makes the chains that send a remembered client to its endpoint.
func (b *builder) remembered() {
	key := b.frontend(kindService).With(b.f.Saddr)
	for i := range affinityMaps {
		b.Chain(fmt.Sprint(chainRemembered, i)).Add(b.f.DNAT(key.Map(affinityMap(i))))
	}
}

// withPorts matches the protocols that have ports. Without it, nft 1.0.6 cannot load a
// concatenation with ct proto-dst from text. The protocols are an anonymous set, because from
// another set nft does not learn the types that it needs.
var withPorts = nft.CTProtocol(servicemodel.TCP, servicemodel.UDP, servicemodel.SCTP)

// learn makes the chains that remember which endpoint a client was given, one for each timeout and
// map. The key comes from conntrack's original tuple, and the data from the packet after DNAT. The
// counter tells [Backend.Settle] whether a client was remembered while it worked.
func (b *builder) learn() {
	f := b.f
	service, nodePort := b.asked()
	endpoint := nft.Concat{f.Daddr, nft.DPort}
	var rules []nft.Rule
	for _, t := range b.shape.affinity {
		timeout := time.Duration(t) * time.Second
		to := fmt.Sprint(chainLearn, "-", t, "-")
		for i := range affinityMaps {
			b.Chain(fmt.Sprint(to, i)).Add(withPorts,
				nft.Update(affinityMap(i), service.With(f.CTSaddr), timeout, endpoint), nft.Counter)
		}
		client := byClient(f.CTSaddr, nft.VerdictGoto, to)
		rules = append(rules,
			nft.Join(withPorts, service.In(affinityName(kindService, t)), client),
			nft.Join(withPorts, service.NotIn(kindService.registry),
				nodePort.In(affinityName(kindNodePort, t)), client))
	}
	b.Chain(chainLearn).Rules = rules
}
