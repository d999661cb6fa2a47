package form

import "github.com/kernlb/kernlb/internal/nft"

func (b *builder) ranges() {
	if !b.shape.Has(Ranges) {
		return
	}
	b.toBlocks(b.Chain(chainDispatchRanges), KindRange, chainAtRange)
	c := b.Chain(chainAtRange)
	c.Add(nft.Jump(KindRange.chain))
	c.Add(b.f.ResetDaddr())

	c = b.Chain(chainNewRanges)
	b.butNodePorts(c)
	b.toBlocks(c, KindRange, KindRange.noEndpoints)
	if b.shape.Has(SourceRanges) {
		c = b.Chain(chainSourceRanges)
		c.Add(b.frontend(KindService).In(KindService.Registry), nft.Return)
		b.butNodePorts(c)
		b.toBlocks(c, KindRange, chainSourceRange)
		c = b.Chain(chainSourceRange)
		c.Add(b.forbidden(KindRange), b.f.ResetDaddr(), b.forbid())
		c.Add(b.f.ResetDaddr())
	}

	if len(b.shape.affinityOf(KindRange)) > 0 {
		b.learnRanges()
	}
}

// nodeRanges builds the chains of ranges of node ports.
func (b *builder) nodeRanges() {
	if !b.shape.Has(NodeRanges) {
		return
	}
	b.toBlocks(b.Chain(chainDispatchNode), KindNodeRange, chainAtNode)
	c := b.Chain(chainAtNode)
	c.Add(nft.Jump(KindNodeRange.chain))
	c.Add(b.f.ResetDaddr())
	b.toBlocks(b.Chain(chainNewNode), KindNodeRange, KindNodeRange.noEndpoints)
	b.oursInNodeRanges(b.Chain(chainMasqNode), nft.MarkXor(b.rules.MasqueradeMark), nft.Masquerade)
	if b.rules.MasqueradeNeighbours {
		b.oursInNodeRanges(b.Chain(chainNearNode), nft.MarkOr(b.rules.MasqueradeMark), nil)
	}
}

// oursInNodeRanges ends a chain for translated packets: it adds rules for flows that were sent to a
// range of node ports. For one lookup, the packet has the flow's port, and its source holds the
// range.
func (b *builder) oursInNodeRanges(c *nft.ProgramChain, do ...nft.Rule) {
	found := b.Chain(c.Name + "-found")
	found.Add(withPorts, nft.ReplyDPort)
	found.Add(b.f.ResetSaddr(), nft.Join(do...))
	c.Add(withPorts, nft.OriginalDPort)
	for _, bits := range b.shape.blockBits(KindNodeRange) {
		key := nft.Concat{nft.PortPrefix(nft.DPort, bits), nft.L4Proto}
		c.Add(withPorts, b.f.SetSaddr(key.Map(BlockMap(KindNodeRange, bits))),
			nft.Goto(found.Name))
	}

	c.Add(withPorts, nft.ReplyDPort)
}

// learnRanges builds the chains that remember clients of ranges. Meanwhile, the packet's source
// stores the range. If a node port has the same number, the original destination decides.
func (b *builder) learnRanges() {
	_, nodePort := b.original()
	c := b.Chain(chainLearnRanges)
	c.Add(withPorts, nodePort.In(KindNodePort.Registry), b.f.ResetDaddr(),
		nft.Goto(chainLearnEither))
	c.Add(nft.Goto(chainLearnBlocks))
	c = b.Chain(chainLearnEither)
	for _, at := range b.nodePorts() {
		c.Add(at, b.f.ReplyDaddr(), nft.Return)
	}
	c.Add(b.f.ReplyDaddr(), nft.Goto(chainLearnBlocks))

	c = b.Chain(chainLearnBlocks)
	b.setPort(c, nft.OriginalDPort)
	for _, bits := range b.shape.blockBits(KindRange) {
		key := nft.Concat{nft.PortPrefix(nft.DPort, bits), b.f.CTDaddr, nft.L4Proto}
		c.Add(withPorts, b.f.SetSaddr(key.Map(BlockMap(KindRange, bits))),
			nft.Goto(chainLearnRange))
	}

	b.setPort(c, nft.ReplyDPort)
	c = b.Chain(chainLearnRange)
	b.setPort(c, nft.ReplyDPort)
	frontend, client := nft.Concat{b.f.CTDaddr, nft.L4Proto, b.f.Saddr},
		b.rangeClient(b.f.CTSaddr, b.f.Saddr)
	for _, a := range b.shape.affinityOf(KindRange) {
		to := chainLearnRange + a.name()
		c.Add(frontend.In(affinityName(KindRange, a)),
			b.byClient(b.f.CTSaddr, a, nft.VerdictGoto, to))
		for i := range AffinityMaps {
			last := b.Chain(AffinityMap(to, i))
			last.Add(b.update(AffinityMap(groupRanges, i), client, a, nft.Concat{b.f.Daddr}))
			last.Add(b.f.ResetSaddr(), nft.Accept)
		}
	}

	c.Add(b.f.ResetSaddr(), nft.Accept)
}
