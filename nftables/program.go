package nftables

import (
	"fmt"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// builder makes the rules of one family.
type builder struct {
	nft.Program
	f     *nft.Family
	rules servicemodel.Rules
	shape *shape
}

// newProgram returns the program of a table: its chains and rules. It depends on the node-wide
// rules and on which features are in use, never on what the services are.
func newProgram(f *nft.Family, r servicemodel.Rules, s *shape) nft.Program {
	b := &builder{f: f, rules: r, shape: s}
	for i, k := range kinds {
		b.balance(k, setExternalSize, setExternalEps, externalBalance, s.sizes[i][1])
		b.balance(k, setSize, setEndpoints, balanceSuffix, s.sizes[i][0])
		b.frontends(k)
	}
	b.dispatch()
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

// in matches packets to a frontend in one of the sets of a kind.
func (b *builder) in(k *kind, set string) nft.Rule { return b.frontend(k).In(k.prefix + set) }

// The names of the chains that draw a slot end so.
const (
	balanceSuffix   = "-balance"
	externalBalance = "-external" + balanceSuffix
)

// balance makes the chain with a rule for each number of slots: the frontends that have so many
// draw one of them.
func (b *builder) balance(k *kind, size, endpoints, suffix string, sizes []int) {
	c := b.Chain(k.prefix + suffix)
	for _, n := range sizes {
		slot := b.frontend(k).With(nft.NumgenRandom(n))
		c.Add(b.in(k, fmt.Sprint(size, n)), b.f.DNAT(slot.Map(k.prefix+endpoints)))
	}
}

// frontends makes the chain that packets to the frontends of a kind go to, once in a connection's
// life.
func (b *builder) frontends(k *kind) {
	mark, notPods := nft.MarkOr(b.rules.MasqueradeMark), b.f.NotFromPods(b.rules.LocalPods)
	c := b.Chain(k.chain)
	c.Add(b.in(k, setMasqAll), mark)
	c.Add(b.in(k, setMasqNotPods), notPods, mark)
	c.Add(b.in(k, setMasqHost), notPods, nft.FIBSaddrLocal, mark)
	if b.affinity() {
		c.Add(byClient(b.f.Saddr, nft.VerdictJump, chainRemembered))
	}
	c.Add(b.in(k, setSplit), notPods, nft.FIBSaddrNotLocal, nft.Goto(k.prefix+externalBalance))
	c.Add(nft.Goto(k.prefix + balanceSuffix))
}
