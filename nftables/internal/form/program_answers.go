package form

import (
	"cmp"

	"github.com/kernlb/kernlb/internal/nft"
)

// newPackets builds the chains for new packets after DNAT. Packets to frontends without endpoints,
// to the other ports of cluster IPs and to unused addresses are never translated.
func (b *builder) newPackets() {
	for _, k := range b.shape.Kinds() {
		c := b.Chain(k.noEndpoints)
		c.Add(b.in(k, setDrop), nft.Drop)
		c.Add(b.in(k, setReject), b.asItWas(k), b.answer(b.rules.NoEndpoints))

		// A commit happened while the packet was in the chains of type nat. The client sends the
		// packet again.
		c.Add(nft.Drop)
	}

	translated := func(c *nft.ProgramChain) {
		if b.affinity() {
			// Only the first packet of a flow is remembered, because only then was an endpoint just
			// chosen. Further packets of an unanswered flow, such as a repeated SYN, may arrive
			// long after the endpoint was removed.
			c.Add(nft.CTStatusDNAT, nft.CTUnconfirmed, nft.Goto(ChainLearn))
		}

		c.Add(nft.CTStatusDNAT, nft.Return)
	}

	in := b.Chain(chainNewInput)
	translated(in)
	in.Add(b.frontend(KindService).In(KindService.Registry), nft.Goto(KindService.noEndpoints))
	for _, at := range b.nodePorts() {
		in.Add(b.frontend(KindNodePort).In(KindNodePort.Registry), at,
			nft.Goto(KindNodePort.noEndpoints))
	}

	b.toRanges(in, nft.Jump(chainNewRanges))
	for _, at := range b.nodePorts() {
		if b.shape.Has(NodeRanges) {
			in.Add(at, nft.Jump(chainNewNode))
		}
	}

	c := b.Chain(chainNew)
	translated(c)
	c.Add(b.frontend(KindService).In(KindService.Registry), nft.Goto(KindService.noEndpoints))
	b.toRanges(c, nft.Jump(chainNewRanges))
	c.Add(b.f.Daddr.In(SetClusterIPs), b.f.Reject())
	for _, p := range b.f.Own(b.rules.ServiceCIDRs) {
		c.Add(b.f.DaddrWithin(p), nft.Drop)
	}
}

// Chains for new packets after DNAT.
const (
	chainNewInput = "new-packets-input" // to this host
	chainNew      = "new-packets"
)

// asItWas restores the destination of a packet if the destination stores a range.
func (b *builder) asItWas(k *Kind) nft.Rule {
	if k.isRange() {
		return b.f.ResetDaddr()
	}
	return nil
}

// forbid returns the end of a rule that answers packets from outside the source ranges.
func (b *builder) forbid() nft.Rule { return b.answer(cmp.Or(b.rules.Forbidden, "drop")) }

// answer returns the end of a rule that answers packets.
func (b *builder) answer(answer string) nft.Rule {
	switch answer {
	case "drop":
		return nft.Drop
	case answerReset:
		return nft.Goto(chainReset)
	}

	return b.f.Reject()
}

const (
	answerReset = "reset"
	chainReset  = "answer-reset"
)

// reset builds the chain that resets connections, if "reset" is one of the answers.
func (b *builder) reset() {
	if b.rules.NoEndpoints == answerReset || b.rules.Forbidden == answerReset {
		c := b.Chain(chainReset)
		c.Add(nft.L4ProtoTCP, nft.ResetTCP)
		c.Add(b.f.Reject())
	}
}
