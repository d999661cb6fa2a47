package form

import (
	"math/bits"
	"strconv"

	"github.com/kernlb/kernlb/internal/nft"
)

// LeafChains returns the chains of some leaves, and the chains to which they jump.
func LeafChains(f *nft.Family, s *Shape, names []string) nft.Program {
	b := builder{f: f, shape: s}
	b.leaves(names)
	return b.Program
}

// leaves builds the chains of leaves, and the chains to which they jump.
func (b *builder) leaves(names []string) {
	for _, name := range names {
		if l, ok := ParseLeaf(name); ok {
			b.leaf(&l)
		}
	}
}

// leaf builds the chain of a leaf, and the chains to which it jumps.
func (b *builder) leaf(l *Leaf) {
	c := b.Chain(l.chain())
	client := nft.Concat{b.f.Saddr}
	if l.port {
		client = client.With(nft.SPort)
	}
	switch l.Way {
	case InTurn:
		b.slot(c, l, nft.NumgenInc(l.Slots))
	case ByMaglev:
		b.slot(c, l, nft.JHash(client, l.Slots, SeedMaglev))
	default:
		for half := l.Slots / 2; half > 0; half /= 2 {
			c.Add(nft.Jump(b.level(l, half, client)))
		}
		b.slot(c, l, nft.NumgenRandom(1))
	}
}

// level builds the chain that chooses among the slots from half to 2·half-1, unless the chain
// exists, and returns its name. A draw below half means that a slot below half is chosen: the chain
// returns, and the next level chooses the slot. If the pool does not have the drawn slot, the draw
// is repeated with another seed. So each slot has the same chance. A new slot takes 1/(n+1) of the
// clients, the same share from each other slot. It moves no other client, even if it is the first
// slot of its level.
func (b *builder) level(l *Leaf, half int, client nft.Concat) string {
	name := l.head() + "level-" + strconv.Itoa(half)
	if b.Has(name) {
		return name
	}
	c := b.Chain(name)
	for i := range Attempts {
		seed := uint32(SeedHash + bits.Len(uint(half))<<8 + i)
		c.Add(nft.JHash(client, 2, seed).IsZero(), nft.Return)
		b.slot(c, l, nft.JHash(client, 2*half, seed))
	}

	return name
}

// slot sends a packet to a slot in the map of a leaf.
func (b *builder) slot(c *nft.ProgramChain, l *Leaf, slot nft.Selector) {
	b.dnat(c, l.Kind, PrefixOf(l.Kind, l.Outside), l.Way, slot)
}
