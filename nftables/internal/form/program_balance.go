package form

import (
	"strconv"

	"github.com/kernlb/kernlb/internal/nft"
)

// The ends of the names of the chains that choose an endpoint.
const (
	chainBalance = "-balance"
	chainAny     = "-any"
	chainDraw    = "-draw-" // followed by the number of slots of a class
)

// A draw of a slot finds an endpoint if the pool has a slot of that number. For its class, a packet
// makes this number of draws, and it goes through the classes in this number of passes. This way,
// at most 2^-18 of a pool's packets come to a draw that favours the first half of the pool's slots.
const (
	draws  = 4
	passes = 3
)

// balances builds the chains that choose an endpoint for the packets to frontends of a kind.
func (b *builder) balances(k *Kind) {
	// A frontend without slot 0 has no endpoints: no other rule finds an endpoint for it.
	b.balance(k, k.Prefix, SetOver, nft.Join(b.asItWas(k), nft.Accept))
	b.draw(k, k.Prefix)
	if !b.shape.Has(SplitPools) {
		return
	}

	// A commit may have taken place after the lookup in the set. The frontend's outside clients may
	// now have the same endpoints as all other clients.
	outside := k.outside
	b.balance(k, outside, SetExternalOver, nft.Join(b.in(k, SetSplit), b.asItWas(k), nft.Accept))
	b.draw(k, outside)
	c := b.Chain(outside)
	b.remember(c, k, groupOutside)
	b.choose(c, outside)
}

// choose makes a packet choose an endpoint. Each lookup sees the latest commit. If a commit takes
// place between two lookups, the packet may find no slot in its class. So it goes through the
// classes again, as after unlucky draws, and finally through a chain that does not depend on the
// class.
func (b *builder) choose(c *nft.ProgramChain, prefix string) {
	for range passes {
		c.Add(nft.Jump(prefix + chainBalance))
	}
	c.Add(nft.Goto(prefix + chainAny))
}

// balance builds the chains for the classes. If the frontend is in a set of frontends with more
// slots, the packet continues in another chain, named after that set. Otherwise it draws a slot for
// its class. none is the rule for frontends without endpoints.
func (b *builder) balance(k *Kind, prefix, over string, none nft.Rule) {
	classes := b.shape.classes()
	for class := range classes {
		name := prefix + chainBalance
		if class > 0 {
			name = k.Prefix + OverName(over, class-1)
		}
		c := b.Chain(name)
		for _, than := range compared(class) {
			if to := k.Prefix + OverName(over, than); than < classes-1 {
				c.Add(b.frontend(k).In(to), nft.Goto(to))
			}
		}

		if class == 0 {
			b.smallest(c, k, prefix, none)
			continue
		}

		for range draws {
			c.Add(nft.Jump(drawName(prefix, MostSlots(class))))
		}
	}
}

// smallest adds the end of the chain for the smallest class. A packet to a pool of one slot draws
// below 2 and then below 1. On average, this takes fewer lookups than one more set.
func (b *builder) smallest(c *nft.ProgramChain, k *Kind, prefix string, none nft.Rule) {
	c.Add(nft.Jump(drawName(prefix, 2)))
	c.Add(nft.Jump(drawName(prefix, 1)))
	if b.shape.Has(Ways) {
		// A commit may take place between the two lookups, and change the scheduler.
		c.Add(b.frontend(k).VMap(prefix + SetScheduled))
		c.Add(nft.Jump(drawName(prefix, 1)))
	}

	c.Add(none)
}

// draw builds a chain for each class, which draws one of the slots that a pool of the class can
// have. It also builds the chain that finds an endpoint in any pool, at least in slot 0. Each draw
// is one lookup. No other rules use the map, because the kernel checks each new element against
// each rule that uses its map (nft_add_set_elem).
func (b *builder) draw(k *Kind, prefix string) {
	last := b.Chain(prefix + chainAny)
	for n := MostSlots(b.shape.classes() - 1); n > 0; n /= 2 {
		b.dnat(b.Chain(drawName(prefix, n)), k, prefix, AtRandom, nft.NumgenRandom(n))
		last.Add(nft.Jump(drawName(prefix, n)))
	}

	for _, w := range []Feature{InTurn, ByHash, ByMaglev} {
		if b.shape.Has(w) {
			b.dnat(last, k, prefix, w, nft.NumgenRandom(1))
		}
	}
}

// drawName is the name of the chain that draws one of n slots.
func drawName(prefix string, n int) string { return prefix + chainDraw + strconv.Itoa(n) }

// frontends builds the chain for the packets to the frontends of a kind. A connection goes through
// it once.
func (b *builder) frontends(k *Kind) {
	mark, notPods := nft.MarkOr(b.rules.MasqueradeMark), b.f.NotFromPods(b.rules.LocalPods)
	c := b.Chain(k.chain)
	if b.shape.Has(SourceRanges) && k.HasAddress() {
		// The frontend may be newer than the check in the chains before DNAT.
		c.Add(b.forbidden(k), nft.Drop)
	}

	c.Add(b.in(k, setMasqAll), mark)
	if b.shape.Has(NotFromPods) {
		c.Add(notPods, b.in(k, SetMasqNotPods), mark)
	}
	if b.shape.Has(SplitPools) {
		c.Add(notPods, b.in(k, setMasqHost), nft.FIBSaddrLocal, mark)
	}
	b.remember(c, k, GroupServices)
	if b.shape.Has(SplitPools) {
		c.Add(notPods, b.in(k, SetSplit), nft.FIBSaddrNotLocal, nft.Jump(k.outside))
	}
	b.remember(c, k, GroupClients)
	b.choose(c, k.Prefix)
}
