package nftables

import (
	"strconv"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// builder makes the rules of one family.
type builder struct {
	nft.Program
	place *place
	f     *nft.Family
	rules servicemodel.Rules
	shape *shape
}

// program returns the program of a table: its chains and rules. It depends on the node-wide rules,
// on the configuration, and on the features in use, and never on the services themselves.
func (p *place) program(f *nft.Family, r servicemodel.Rules, s *shape) nft.Program {
	b := &builder{place: p, f: f, rules: r, shape: s}
	for _, k := range kinds {
		b.balances(k)
		b.frontends(k)
	}
	b.leaves(b.shape.leaves)
	b.dispatch()
	b.reset()
	b.noEndpoints()
	b.masquerade()
	if b.affinity() {
		b.remembered()
		b.learn()
	}
	b.hooks()
	return b.Program
}

// affinity reports whether clients are remembered.
func (b *builder) affinity() bool { return len(b.shape.affinity) > 0 }

// frontend selects the key of a frontend of a kind from the packet.
func (b *builder) frontend(k *kind) nft.Concat { return b.f.Frontend(k == kindNodePort) }

// in matches packets whose frontend is in one of the sets of a kind.
func (b *builder) in(k *kind, set string) nft.Rule { return b.frontend(k).In(k.prefix + set) }

// The ends of the names of the chains that choose an endpoint.
const (
	chainBalance = "-balance"
	chainAny     = "-any"
	chainDraw    = "-draw-" // followed by the number of slots of a class
	external     = "-external"
)

// A draw of a slot finds an endpoint if the pool has a slot of that number. A packet makes so many
// draws for its class, and passes through the classes so many times. Then at most 2^-18 of a pool's
// packets come to a draw that favours the first half of its slots.
const (
	draws  = 4
	passes = 3
)

// balances makes the chains that choose an endpoint for the packets to frontends of a kind.
func (b *builder) balances(k *kind) {
	// A frontend without slot 0 has no endpoints. No other rule finds one.
	b.balance(k, k.prefix+chainBalance, k.prefix, setOver, b.shape.classes(), nft.Accept)
	b.draw(k, k.prefix)
	if !b.shape.split {
		return
	}
	// A commit may have come after the lookup in the set. The frontend's outside clients may now
	// have the same endpoints as others.
	outside := k.outside
	b.balance(k, outside+chainBalance, outside, setExternalOver, b.shape.classes(),
		nft.Join(b.in(k, setSplit), nft.Accept))
	b.draw(k, outside)
	b.choose(b.Chain(outside), outside)
}

// choose makes a packet choose an endpoint. Each lookup sees the latest commit. If a commit comes
// between two lookups, the packet may find no slot in its class. So it passes through the classes
// again, as it does after unlucky draws, and at last through a chain that does not depend on the
// class.
func (b *builder) choose(c *nft.ProgramChain, prefix string) {
	for range passes {
		c.Add(nft.Jump(prefix + chainBalance))
	}
	c.Add(nft.Goto(prefix + chainAny))
}

// balance makes the chain for the classes of s. If the frontend is in a set of frontends with more
// slots, the packet goes on in another chain, named after that set. Otherwise it draws a slot for
// the smallest class. none is the rule for frontends without endpoints.
func (b *builder) balance(k *kind, name, prefix, over string, s span, none nft.Rule) {
	c := b.Chain(name)
	for s.lo < s.hi {
		at := s.split()
		larger := k.prefix + overName(over, at)
		c.Add(b.frontend(k).In(larger), nft.Goto(larger))
		b.balance(k, larger, prefix, over, span{at + 1, s.hi}, nil)
		s.hi = at
	}
	draw := nft.Jump(drawName(prefix, s.lo))
	if s.lo == 0 {
		c.Add(draw)
		if b.shape.schedules() {
			// A commit may come between the two lookups, and change the scheduler.
			c.Add(b.frontend(k).VMap(prefix + setScheduled))
			c.Add(draw)
		}
		c.Add(none)
		return
	}
	for range draws {
		c.Add(draw)
	}
}

// draw makes a chain for each class, which draws one of the slots that a pool of the class can
// have, and the chain that finds an endpoint of any pool, at last slot 0, each in one lookup. No
// other rules ask the map, because the kernel checks each new element against each rule that asks
// its map (nft_add_set_elem).
func (b *builder) draw(k *kind, prefix string) {
	last := b.Chain(prefix + chainAny)
	for class := b.shape.classes().hi; class >= 0; class-- {
		b.Chain(drawName(prefix, class)).Add(b.dnat(k, prefix, atRandom,
			nft.NumgenRandom(1<<class)))
		last.Add(nft.Jump(drawName(prefix, class)))
	}
	for i, used := range b.shape.ways {
		if used {
			last.Add(b.dnat(k, prefix, ways[i], nft.NumgenRandom(1)))
		}
	}
}

// drawName is the name of the chain that draws a slot of a class.
func drawName(prefix string, class int) string {
	return prefix + chainDraw + strconv.Itoa(1<<class)
}

// frontends makes the chain for the packets to the frontends of a kind. A connection passes through
// it once.
func (b *builder) frontends(k *kind) {
	mark, notPods := nft.MarkOr(b.rules.MasqueradeMark), b.f.NotFromPods(b.rules.LocalPods)
	c := b.Chain(k.chain)
	if b.shape.sources && k == kindService {
		// The frontend may be newer than the check in the chains before DNAT.
		c.Add(b.forbidden(), nft.Drop)
	}
	c.Add(b.in(k, setMasqAll), mark)
	c.Add(b.in(k, setMasqNotPods), notPods, mark)
	if b.shape.split {
		c.Add(b.in(k, setMasqHost), notPods, nft.FIBSaddrLocal, mark)
	}
	b.remember(c, k)
	if b.shape.split {
		c.Add(b.in(k, setSplit), notPods, nft.FIBSaddrNotLocal, nft.Jump(k.outside))
	}
	b.choose(c, k.prefix)
}
