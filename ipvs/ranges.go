package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// This file contains ranges of ports. IPVS has no ranges, but a virtual server by firewall mark has
// any port: a destination of port 0 gets packets at the port to which they were sent. So a range
// has a mark, and the companion sets the mark on all packets of flows to the range. A packet finds
// its range by blocks of ports, as in package nftables: each size of a block in use has a map, and
// the packet looks in the map of the smallest blocks first. From there on, the mark identifies the
// range: it is the key in the sets of the kind.

// Sets of ranges.
const (
	setRangeAddresses  = "range-addresses"
	setRangeRestricted = "range-restricted"
	setRangeSources    = "range-sources"
)

// blockMap is the name of the map of blocks with this number of leading bits.
func blockMap(bits uint8) string { return "range-blocks-" + strconv.Itoa(int(bits)) }

// blockBits lists the numbers of leading bits of the table's blocks, the greatest first.
func (s shape) blockBits() (l []uint8) {
	for b := 16; b >= 0; b-- {
		if s>>b&1 != 0 {
			l = append(l, uint8(b))
		}
	}

	return l
}

// portRange has the additional content of the record of a range.
type portRange struct {
	mark   uint32 // of its virtual server
	blocks []servicemodel.PortBlock
	first  bool // it is the reason why its address is in the set
}

func (p *portRange) equal(o *portRange) bool {
	return p == o || p != nil && o != nil && p.mark == o.mark && p.first == o.first &&
		slices.Equal(p.blocks, o.blocks)
}

// rangeIn returns the blocks of a range of a table.
func rangeIn(t *servicemodel.Table, k servicemodel.FrontendKey) *portRange {
	first := t.FirstRange(k.Addr)
	return &portRange{blocks: slices.Collect(t.OwnBlocks(k)), first: first != nil && first.Key == k}
}

// elements passes on the elements that send packets to the range.
func (p *portRange) elements(k servicemodel.FrontendKey, to func(set string, e nft.Elem)) {
	for _, b := range p.blocks {
		to(blockMap(b.Bits), nft.Elem{Key: nft.AppendBlock(nil, b.First, k),
			Data: nft.Native32(p.mark)})
	}

	if p.first {
		to(setRangeAddresses, nft.Elem{Key: nft.AppendAddr(nil, k.Addr)})
	}
}

// withoutBlocks returns a copy of r without port blocks, so that no packet matches its range, or r
// itself if it has no range.
func (r *record) withoutBlocks() *record {
	if r == nil || r.at == nil {
		return r
	}
	next := *r
	next.at = &portRange{mark: r.at.mark}
	return &next
}

// marks lists the marks of the virtual servers of a record, which may be nil.
func (r *record) marks() (l []uint32) {
	switch {
	case r == nil:
		return nil
	case r.at != nil:
		l = append(l, r.at.mark)
	}

	if r.mark != 0 {
		l = append(l, r.mark)
	}
	return l
}

// rangesBeside returns the ranges that stay, and whose blocks may change because a range is added
// or removed: a later range that overlaps with the changed range contains one of its ends.
func rangesBeside(c *servicemodel.ChangeSet, fc servicemodel.Change[servicemodel.Frontend]) (
	l []servicemodel.FrontendKey) {
	fe := fc.New
	if fe == nil {
		fe = fc.Old
	}
	k := fe.Key
	if k.EndPort == 0 || fc.Old != nil && fc.New != nil {
		return nil
	}
	for _, t := range []*servicemodel.Table{c.Old, c.New} {
		for _, r := range slices.Concat(t.RangesAt(k.Addr, k.Protocol, k.Port),
			t.RangesAt(k.Addr, k.Protocol, k.EndPort)) {
			l = append(l, r.Key)
		}
		if first := t.FirstRange(k.Addr); first != nil {
			l = append(l, first.Key)
		}
	}

	return l
}

// keepsPorts reports whether a frontend is a range and packets keep their ports at all endpoints.
func keepsPorts(fe *servicemodel.Frontend, p *servicemodel.Pool) bool {
	return fe.Key.EndPort != 0 && (p == nil || !slices.ContainsFunc(p.Slots,
		func(s servicemodel.Slot) bool { return s.Endpoint.Port() != 0 }))
}

// hashedClients names the virtual servers by mark of a frontend that cannot remember clients. It is
// empty if there are none.
func hashedClients(t *servicemodel.Table, fe *servicemodel.Frontend) string {
	main, alt := pools(t, fe)
	switch {
	case fe.Key.EndPort != 0 && (!keepsPorts(fe, main) || !keepsPorts(fe, alt)):
		return "at a range of ports whose endpoints have one port"
	case fe.Key.EndPort == 0 && alt != nil:
		return "where pods and the host have endpoints of their own"
	}

	return ""
}

func rangeSets(f *nft.Family, shape shape) []*nft.Set {
	mark := []nft.Field{nft.FieldMark}
	l := []*nft.Set{
		{Name: kindRange + "s", Key: []nft.Field{f.Addr, nft.FieldProto, f.Addr}, Data: mark,
			Flags: nft.SetMap}, // the ports have the form of an address
		{Name: kindRange + setMarks, Key: mark, Data: mark, Flags: nft.SetMap},
		{Name: setRangeAddresses, Key: []nft.Field{f.Addr}},
		{Name: setRangeRestricted, Key: mark},
		{Name: setRangeSources, Key: []nft.Field{nft.FieldMark, f.Addr},
			Flags: nft.SetInterval | nft.SetConcat},
	}
	for _, rest := range verdictSets {
		l = append(l, &nft.Set{Name: kindRange + rest, Key: mark})
	}
	for _, b := range shape.blockBits() {
		l = append(l, &nft.Set{Name: blockMap(b), Key: []nft.Field{nft.FieldPort, f.Addr,
			nft.FieldProto}, Data: mark, Flags: nft.SetMap})
	}

	return l
}

// addIfRanges appends a rule to a chain if the table has ranges.
func (b *builder) addIfRanges(c *nft.ProgramChain, parts ...nft.Rule) {
	if b.shape.hasRanges() {
		c.Add(parts...)
	}
}

// The chains in which a packet to an address with ranges searches for its range, and into which it
// goes when it has found the range.
const (
	chainFindRange = "find-range"
	chainAtRange   = "at-range"
)

// ranges builds the chains that find the range of a packet. Exact ports and node ports take
// precedence over ranges. ICMP errors about packets to a range have no ports, but conntrack knows
// their flow.
func (b *builder) ranges() {
	if !b.shape.hasRanges() {
		return
	}
	at := b.Chain(chainAtRange)
	at.Add(nft.CTStateNew, nft.Goto(kindRange))
	c := b.Chain(chainFindRange)
	c.Add(b.in(kindService, kindService+"s"), nft.Return)
	c.Add(b.in(kindNodePort, kindNodePort+"s"), b.f.Daddr.In(setNodeAddrs), nft.Return)
	for _, bits := range b.shape.blockBits() {
		key := nft.Concat{nft.PortPrefix(nft.DPort, bits), b.f.Daddr, nft.L4Proto}
		c.Add(nft.SetMark(key.Map(blockMap(bits))), nft.Goto(chainAtRange))
	}

	c.Add(nft.CTStateRelated, b.steer())
}

// leadRanges delivers packets to addresses with ranges to IPVS.
func (b *builder) leadRanges(pre, out *nft.ProgramChain) {
	there := b.f.Daddr.In(setRangeAddresses)
	b.addIfRanges(pre, there, nft.CTDirOriginal, nft.CTNotDNAT, nft.Jump(chainFindRange))
	b.addIfRanges(out, there, nft.CTDirOriginal, nft.Jump(chainFindRange))
	for _, c := range []*nft.ProgramChain{pre, out} {
		b.addIfRanges(c, there, backwards, nft.FIBDaddrNotLocal, nft.Jump(chainFindRange))
	}
}

// sent ends a rule for packets that IPVS has sent on translated, and that had a mark of a virtual
// server. A table with ranges needs the mark until they are masqueraded.
func (b *builder) sent() nft.Rule {
	if b.shape.hasRanges() {
		return nft.MarkOr(sentMark)
	}
	return nft.MarkAnd(0)
}

// takeRanges reads the records of ranges in the registry.
func (c *companion) takeRanges(f *nft.Family, raw *rawTable) error {
	sources := sourcesIn(f, raw.elems[setRangeSources], (*nft.Reader).Native)
	var all []*servicemodel.Frontend
	for key, e := range raw.elems[kindRange+"s"] {
		rd, data := nft.Reader{Bytes: []byte(key)}, nft.Reader{Bytes: e.Data}
		k, mark := rd.RangeFrontend(f.AddrLen), data.Native()
		if !rd.Done() || !data.Done() || k.EndPort == 0 {
			return fmt.Errorf("set %ss: a key of %d bytes and a mark of %d", kindRange, len(key),
				len(e.Data))
		}
		r, err := parseRecord(nft.CommentOf(e.UserData), k)
		if err != nil {
			return err
		}

		r.at = &portRange{mark: mark}
		if _, restricted := raw.elems[setRangeRestricted][string(e.Data)]; restricted {
			r.fe.Sources = append([]netip.Prefix{}, sources[mark]...)
		}
		r.takeMasqueradeIP(raw, kindRange, string(e.Data))
		c.records[k] = r
		all = append(all, &servicemodel.Frontend{Key: k, Service: r.fe.Service})
	}

	t, err := servicemodel.NewTable(servicemodel.Contents{Frontends: all})
	if err != nil {
		return err
	}
	for _, fe := range all {
		r := c.records[fe.Key]
		mark := r.at.mark
		r.at = rangeIn(t, fe.Key)
		r.at.mark = mark
	}

	return nil
}
