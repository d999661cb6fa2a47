package form

import "github.com/kernlb/kernlb/internal/nft"

// masquerade builds the chain that masquerades a marked packet that was sent to a frontend of this
// instance, and clears the mark. The mark alone is not enough: another instance may have the same
// mark, and other programs may use the bit for something else (bit 14 is in wg-quick's mark,
// 0xca6c).
func (b *builder) masquerade() {
	c, clear := b.Chain(chainMasquerade), nft.MarkXor(b.rules.MasqueradeMark)
	if b.shape.Has(MasqueradeIPs) {
		b.masqueradeAs(c, clear)
	} else {
		for _, ours := range b.ours() {
			c.Add(withPorts, ours, clear, nft.Masquerade)
		}
	}

	if b.shape.Has(NodeRanges) {
		c.Add(nft.Goto(chainMasqNode))
	}
}

// masqueradeAs builds the chains for frontends that may set the source of masqueraded connections.
// Ranges precede node ports, because a port number alone does not distinguish the two.
func (b *builder) masqueradeAs(c *nft.ProgramChain, clear nft.Rule) {
	service, nodePort := b.original()
	to := func(k *Kind) nft.Rule { return nft.Goto(k.Prefix + SetMasqIPs) }
	c.Add(withPorts, service.In(KindService.Registry), clear, to(KindService))
	if b.shape.Has(Ranges) {
		c.Add(withPorts, b.f.CTDaddr.In(SetRangeAddresses), clear, to(KindRange))
	}
	c.Add(withPorts, nodePort.In(KindNodePort.Registry), clear, to(KindNodePort))

	for _, k := range []*Kind{KindService, KindNodePort} {
		key := service
		if k == KindNodePort {
			key = nodePort
		}
		c = b.Chain(k.Prefix + SetMasqIPs)
		c.Add(b.f.SNATAddr(key.Map(k.Prefix + SetMasqIPs)))
		c.Add(nft.Masquerade)
	}

	if b.shape.Has(Ranges) {
		b.masqueradeRangeAs(to)
	}
}

// masqueradeRangeAs builds the chains for packets to addresses with ranges. The packet's source
// stores the range for one lookup. Afterwards the source is translated in any case.
func (b *builder) masqueradeRangeAs(to func(*Kind) nft.Rule) {
	_, nodePort := b.original()
	c := b.Chain(KindRange.Prefix + SetMasqIPs)
	c.Add(nodePort.In(KindNodePort.Registry), b.f.ResetDaddr(), nft.Goto(chainMasqEither))
	c.Add(nft.Goto(chainMasqBlocks))

	c = b.Chain(chainMasqEither)
	for _, at := range b.nodePorts() {
		c.Add(at, b.f.ReplyDaddr(), to(KindNodePort))
	}
	c.Add(b.f.ReplyDaddr(), nft.Goto(chainMasqBlocks))

	c = b.Chain(chainMasqBlocks)
	b.setPort(c, nft.OriginalDPort)
	for _, bits := range b.shape.blockBits(KindRange) {
		key := nft.Concat{nft.PortPrefix(nft.DPort, bits), b.f.CTDaddr, nft.L4Proto}
		c.Add(b.f.SetSaddr(key.Map(BlockMap(KindRange, bits))), nft.Goto(chainMasqRange))
	}

	b.setPort(c, nft.ReplyDPort)
	c.Add(nft.Masquerade)

	c = b.Chain(chainMasqRange)
	b.setPort(c, nft.ReplyDPort)
	key := nft.Concat{b.f.CTDaddr, nft.L4Proto, b.f.Saddr}
	c.Add(b.f.SNATAddr(key.Map(KindRange.Prefix + SetMasqIPs)))
	c.Add(b.f.ResetSaddr(), nft.Masquerade)
}

// The chains that masquerade.
const (
	chainMasquerade = "marked"
	chainMasqEither = "masquerade-range-or-node-port"
	chainMasqBlocks = "masquerade-blocks"
	chainMasqRange  = "masquerade-range"
)
