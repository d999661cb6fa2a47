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

// PortBlock is the set of all ports with the same leading bits.
type PortBlock struct {
	First uint16 // the port whose other bits are zero
	Bits  uint8  // the number of equal leading bits: 16 for one port, 0 for all
}

// Last returns the last port of the block.
func (b PortBlock) Last() uint16 { return b.First | ^b.mask() }

func (b PortBlock) mask() uint16 { return ^uint16(0) << (16 - b.Bits) }

// Blocks yields the smallest number of blocks that together are the ports of a frontend, at most
// 30, in order. If a range contains a narrower one, each block of the narrower range lies within
// one block of the other.
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

// minRun is the fewest ports that [JoinPorts] joins. A packet finds a few ports faster one by one.
const minRun = 16

// JoinPorts merges n published ports into ranges, for programs that have lists of single ports. at
// returns the place where the i-th port is published, the endpoints' port, and whether the port may
// be part of a range. Ports of one place that may be joined must have the same endpoints. The
// result yields the index of a port that remains single and 0, or the index of the first port of a
// range and the last port of that range. A range has at least 16 consecutive ports, and their
// endpoints' ports are consecutive, too. If these differ, the range needs a
// [ServicePort.TargetPort]. For a backend that refuses it, let only equal ports join. Ports that
// are listed twice remain single.
func JoinPorts[K comparable](n int,
	at func(i int) (place K, port, target uint16, may bool)) iter.Seq2[int, uint16] {
	type claim struct {
		place, port, target, i int
		may                    bool
	}
	l, places := make([]claim, n), map[K]int{}
	for i := range n {
		place, port, target, may := at(i)
		number, known := places[place]
		if !known {
			number = len(places)
			places[place] = number
		}
		l[i] = claim{number, int(port), int(target), i, may}
	}

	compare := func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.port, b.port))
	}
	slices.SortFunc(l, compare)
	joins := func(i int) bool {
		return l[i].may && (i == 0 || compare(l[i-1], l[i]) < 0) &&
			(i == n-1 || compare(l[i], l[i+1]) < 0)
	}
	ends, within := make([]uint16, n), make([]bool, n)
	for first, next := 0, 0; first < n; first = next {
		next = first + 1
		for joins(first) && next < n && l[next].place == l[first].place &&
			l[next].port == l[next-1].port+1 && l[next].target == l[next-1].target+1 &&
			joins(next) {
			next++
		}
		if next-first < minRun {
			continue
		}
		ends[l[first].i] = uint16(l[next-1].port)
		for _, c := range l[first+1 : next] {
			within[c.i] = true
		}
	}

	return func(yield func(int, uint16) bool) {
		for i, end := range ends {
			if !within[i] && !yield(i, end) {
				return
			}
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

// RangesAt returns the frontends at an address whose range contains the port. The first frontend
// gets the packets, unless a frontend has exactly that port. It costs O(log n).
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

// OwnBlocks yields the blocks that a range owns: those of its blocks that no earlier range contains
// ([FrontendKey.CompareRange]). No two ranges of an address own the same block. The packets of a
// port go to the range that owns the smallest block with that port.
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

// FirstRange returns a frontend at an address that answers at a range of ports, or nil if there is
// none. It returns the same frontend for equal tables.
func (t *Table) FirstRange(a netip.Addr) *Frontend {
	at := func(k blockKey) bool { return k.addr == a }
	for _, l := range t.orEmpty().ranges.From(blockKey{addr: a}, at) {
		return lend(slices.MinFunc(l, compareRanges))
	}
	return nil
}

// Target returns the destination of packets to a port of f at an endpoint of a [Slot].
func (f *Frontend) Target(endpoint netip.AddrPort, port uint16) netip.AddrPort {
	switch {
	case endpoint.Port() == 0:
		return netip.AddrPortFrom(endpoint.Addr(), port)
	case f.Shifted:
		return netip.AddrPortFrom(endpoint.Addr(), endpoint.Port()+(port-f.Key.Port))
	}

	return endpoint
}

// TargetText returns an endpoint of a pool as text: "10.0.1.7:8080", or "10.0.1.7" if packets keep
// their ports there.
func TargetText(e netip.AddrPort) string {
	if e.Port() == 0 && e.IsValid() {
		return e.Addr().String()
	}
	return e.String()
}
