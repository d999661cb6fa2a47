package form

import (
	"strconv"

	"github.com/kernlb/kernlb/internal/nft"
)

// A packet to a range matches no frontend exactly. Rules look for its range only if its address is
// in a set of addresses with ranges. There is a map for each number of leading bits of a block in
// use. The rules look up the packet's port in these maps in turn, the most bits first. So they find
// the smallest block with the port, and this block belongs to the narrowest range: a block of a
// range contains all blocks of narrower ranges in it. If several ranges have the same block, only
// the first range ([servicemodel.Table.RangesAt]) has an element for it. The same is true if two
// ranges overlap and neither contains the other.
//
// The values are the first and the last port, in the form of an address. Rules cannot look up the
// result of a lookup. So the range is stored in the packet's destination, until the packet is
// translated or its destination is restored. Conntrack has the original destination. The key of a
// range is the original destination, the protocol, and the range.
//
// Rules look for a range of node ports last, in separate maps whose keys have no address. The key
// of such a range is the protocol and the range.
//
// Packets keep their ports, or all endpoints of a range have one port, or the range is mapped to a
// range of its endpoints. The maps of endpoints and of clients have only addresses, because the
// IPv6 key leaves no room for a port. Rules cannot add. So a map has the endpoints' port for each
// port of a mapped range.

// BlockMap is the name of the map of blocks with this number of leading bits, of ranges of a kind.
func BlockMap(k *Kind, bits uint8) string {
	return k.Prefix + "-blocks-" + strconv.Itoa(int(bits))
}

// blockBits lists the numbers of leading bits that ranges of a kind use, in descending order.
func (s *Shape) blockBits(k *Kind) (l []uint8) {
	for bits := BlockBits; bits >= 0; bits-- {
		if s.Has(BlocksOf(k, uint8(bits))) {
			l = append(l, uint8(bits))
		}
	}

	return l
}

// rangeSets lists the sets that send packets to ranges.
func rangeSets(f *nft.Family, s *Shape) (l []*nft.Set) {
	blocks := func(k *Kind, key ...nft.Field) {
		for _, bits := range s.blockBits(k) {
			l = append(l, &nft.Set{Name: BlockMap(k, bits), Key: key, Data: []nft.Field{f.Addr},
				Flags: nft.SetMap, Comment: "blocks of ports, and their ranges"})
		}
	}
	blocks(KindRange, nft.FieldPort, f.Addr, nft.FieldProto)
	blocks(KindNodeRange, nft.FieldPort, nft.FieldProto)

	if s.Has(Ranges) {
		l = append(l, &nft.Set{Name: SetRangeAddresses, Key: []nft.Field{f.Addr},
			Comment: "addresses with ranges of ports"})
	}
	for _, k := range s.Kinds() {
		l = append(l, k.portSets(f, s)...)
	}

	return l
}

// portSets lists the sets of ranges whose packets do not keep their ports.
func (k *Kind) portSets(f *nft.Family, s *Shape) (l []*nft.Set) {
	if !k.isRange() {
		return nil
	}
	add := func(end, comment string, key []nft.Field, data ...nft.Field) {
		set := &nft.Set{Name: k.Prefix + end, Key: key, Data: data, Comment: comment}
		if data != nil {
			set.Flags = nft.SetMap
		}
		l = append(l, set)
	}
	key := k.Key(f)
	if s.Has(changePort(k)) {
		add(SetToPort, "their packets do not keep their ports", key)
	}
	if s.Has(ToPortOf(k)) {
		add(SetPorts, "the port of their endpoints", key, nft.FieldPort)
	}
	if s.Has(ShiftedOf(k)) {
		add(SetShifts, "the port of their endpoints, by port", append(key, nft.FieldPort),
			nft.FieldPort)
	}

	return l
}

// The chains of ranges.
const (
	chainDispatchRanges = "dispatch-ranges" // finds the range of a packet
	chainAtRange        = "at-range"        // has found it
	chainNewRanges      = "new-packets-ranges"
	chainSourceRanges   = "restricted-ranges"
	chainSourceRange    = "restricted-range"
	chainLearnRanges    = "learn-ranges"
	chainLearnEither    = "learn-ranges-or-node-ports"
	chainLearnBlocks    = "learn-blocks"
	chainLearnRange     = "learn-range"
)

// The chains of ranges of node ports.
const (
	chainDispatchNode = "dispatch-node-ranges" // finds the range of a packet
	chainAtNode       = "at-node-range"        // has found it
	chainNewNode      = "new-packets-node-ranges"
	chainMasqNode     = "masquerade-node-ranges"
	chainNearNode     = "neighbours-node-ranges"
)

// toRanges sends packets to addresses with ranges to a chain.
func (b *builder) toRanges(c *nft.ProgramChain, to nft.Rule) {
	if b.shape.Has(Ranges) {
		c.Add(b.f.Daddr.In(SetRangeAddresses), to)
	}
}

// toBlocks lets a packet find its range of a kind, and continue in another chain.
func (b *builder) toBlocks(c *nft.ProgramChain, k *Kind, to string) {
	for _, bits := range b.shape.blockBits(k) {
		key := nft.Concat{nft.PortPrefix(nft.DPort, bits), b.f.Daddr, nft.L4Proto}
		if k == KindNodeRange {
			key = nft.Concat{key[0], nft.L4Proto}
		}
		c.Add(b.f.SetDaddr(key.Map(BlockMap(k, bits))), nft.Goto(to))
	}
}

// setPort adds the rule to, which changes the port of translated packets, if the packets of some
// range do not keep their ports. A block is found by the port of the packet, because nft cannot
// list the leading bits of conntrack's port.
func (b *builder) setPort(c *nft.ProgramChain, to nft.Rule) {
	if b.shape.Has(changePort(KindRange)) {
		c.Add(withPorts, to)
	}
}

// butNodePorts adds rules that end a chain for packets to node ports.
func (b *builder) butNodePorts(c *nft.ProgramChain) {
	for _, at := range b.nodePorts() {
		c.Add(b.frontend(KindNodePort).In(KindNodePort.Registry), at, nft.Return)
	}
}

// rangeClient selects the key of a client in the maps of ranges. The key of IPv6 leaves no room in
// the registers for the protocol. For IPv6, the range contains the protocol.
func (b *builder) rangeClient(client, portRange nft.Selector) nft.Concat {
	if b.f == nft.IPv6 {
		return nft.Concat{client, b.f.CTDaddr, portRange}
	}
	return nft.Concat{client, b.f.CTDaddr, nft.L4Proto, portRange}
}
