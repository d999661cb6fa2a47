package servicemodel

import (
	"cmp"
	"iter"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/servicemodel/internal/pmap"
)

// This file contains frontends that answer at a range of ports.

// LastPort returns the last port at which a frontend answers: Port, unless the key is a range.
func (k FrontendKey) LastPort() uint16 { return max(k.Port, k.EndPort) }

// Contains reports whether a frontend answers at a port.
func (k FrontendKey) Contains(port uint16) bool { return k.Port <= port && port <= k.LastPort() }

// ports returns "80", or "10000-20000" for a range.
func (k FrontendKey) ports() string {
	if k.EndPort == 0 {
		return uitoa(k.Port)
	}
	return uitoa(k.Port) + "-" + uitoa(k.EndPort)
}

// CompareRange orders the ranges that have a port in common: the first range gets the packets of
// the port. A narrower range precedes a wider range; of equally wide ranges, the range that begins
// earlier is first. An exact port is the narrowest range.
func (k FrontendKey) CompareRange(o FrontendKey) int {
	width := func(k FrontendKey) int { return int(k.LastPort()) - int(k.Port) }
	return cmp.Or(cmp.Compare(width(k), width(o)), k.Compare(o))
}

func compareRanges(a, b *Frontend) int { return a.Key.CompareRange(b.Key) }

// PortBlock is all ports that have the same leading bits.
type PortBlock struct {
	First uint16 // the port whose other bits are zero
	Bits  uint8  // the number of equal leading bits: 16 for one port, 0 for all
}

// Last returns the last port of the block.
func (b PortBlock) Last() uint16 { return b.First | ^b.mask() }

func (b PortBlock) mask() uint16 { return ^uint16(0) << (16 - b.Bits) }

// Blocks yields the fewest blocks that make up the ports of a frontend, at most 30, in order. Every
// block of a range inside this range lies within one of these blocks.
func (k FrontendKey) Blocks() iter.Seq[PortBlock] {
	return func(yield func(PortBlock) bool) {
		for first, end := uint32(k.Port), uint32(k.LastPort())+1; first < end; {
			most := bits.TrailingZeros32(first | 1<<16)
			most = min(most, bits.Len32(end-first)-1)
			if !yield(PortBlock{uint16(first), uint8(16 - most)}) {
				return
			}
			first += 1 << most
		}
	}
}

// blockKey is a block of ports at an address.
type blockKey struct {
	addr     netip.Addr
	protocol Protocol
	block    PortBlock
}

// Compare orders keys by address, protocol and block.
func (k blockKey) Compare(o blockKey) int {
	if c := k.addr.Compare(o.addr); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(k.protocol, o.protocol), cmp.Compare(k.block.Bits, o.block.Bits),
		cmp.Compare(k.block.First, o.block.First))
}

type blockHash struct{}

func (blockHash) Hash(k blockKey) uint64 {
	return addrHash{}.Hash(k.addr) ^ pmap.Hash(uint32(k.block.First)<<16|
		uint32(k.block.Bits)<<8|uint32(k.protocol))
}

// rangeIndex finds ranges by their blocks. Several ranges may have the same block.
type rangeIndex = pmap.Map[blockKey, []*Frontend, blockHash]

// indexRange replaces a frontend in the index of ranges. Either frontend may be nil. Frontends that
// are not ranges are ignored.
func (t *Table) indexRange(was, is *Frontend) {
	if was != nil && was.Key.EndPort != 0 {
		for b := range was.Key.Blocks() {
			k := blockKey{was.Key.Addr, was.Key.Protocol, b}
			left := filter(t.ranges.At(k), func(f *Frontend) bool { return f.Key != was.Key })
			if len(left) == 0 {
				t.ranges = t.ranges.Delete(k)
			} else {
				t.ranges = t.ranges.Set(k, left)
			}
		}
	}

	if is != nil && is.Key.EndPort != 0 {
		for b := range is.Key.Blocks() {
			k := blockKey{is.Key.Addr, is.Key.Protocol, b}
			t.ranges = t.ranges.Set(k, append(slices.Clip(t.ranges.At(k)), is))
		}
	}
}

// RangesAt returns the frontends at an address that answer at a range with the port. The first
// frontend gets the packets, unless a frontend has exactly that port. It costs O(log n).
func (t *Table) RangesAt(a netip.Addr, p Protocol, port uint16) []*Frontend {
	return lendAll(t.orEmpty().rangesAt(a, p, port))
}

func (t *Table) rangesAt(a netip.Addr, p Protocol, port uint16) (l []*Frontend) {
	if t.ranges.Len() == 0 {
		return nil
	}
	for n := range uint8(17) {
		b := PortBlock{Bits: n}
		b.First = port & b.mask()
		l = append(l, t.ranges.At(blockKey{a, p, b})...)
	}

	slices.SortFunc(l, compareRanges)
	return l
}

// OwnBlocks yields the blocks by which packets find a range: the blocks of the range that no
// earlier range contains ([FrontendKey.CompareRange]). No two ranges of an address own the same
// block. Of the owned blocks that contain a port, the smallest belongs to the range that gets its
// packets.
func (t *Table) OwnBlocks(k FrontendKey) iter.Seq[PortBlock] {
	return func(yield func(PortBlock) bool) {
		for b := range k.Blocks() {
			if t.orEmpty().firstWith(k, b) == k && !yield(b) {
				return
			}
		}
	}
}

// firstWith returns the first range at the address of k that has all ports of a block.
func (t *Table) firstWith(k FrontendKey, b PortBlock) FrontendKey {
	for _, r := range t.rangesAt(k.Addr, k.Protocol, b.First) {
		if r.Key.Contains(b.Last()) {
			return r.Key
		}
	}

	return k
}

// overlapping returns the frontends that have a port in common with a key.
func (t *Table) overlapping(k FrontendKey) (l []*Frontend) {
	if k.EndPort == 0 {
		if f := t.frontends.At(k); f != nil {
			l = append(l, f)
		}
		return append(l, t.rangesAt(k.Addr, k.Protocol, k.Port)...)
	}
	for f := range t.frontendsAt(k.Addr) {
		if f.Key.Protocol == k.Protocol && f.Key.Port <= k.EndPort && k.Port <= f.Key.LastPort() {
			l = append(l, f)
		}
	}

	return l
}

// FirstRange returns one of the frontends at an address that answer at a range of ports, or nil.
// For equal tables it returns the same frontend.
func (t *Table) FirstRange(a netip.Addr) *Frontend {
	at := func(k blockKey) bool { return k.addr == a }
	for _, l := range t.orEmpty().ranges.From(blockKey{addr: a}, at) {
		return lend(slices.MinFunc(l, compareRanges))
	}
	return nil
}

// TargetText returns an endpoint of a pool as text: "10.0.1.7:8080", or "10.0.1.7" if packets keep
// their ports there.
func TargetText(e netip.AddrPort) string {
	if e.Port() == 0 && e.IsValid() {
		return e.Addr().String()
	}
	return e.String()
}
