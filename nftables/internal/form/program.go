package form

import (
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// Program returns the program of a table: its chains and rules. It depends on the node-wide rules,
// on the configuration, and on the features in use, and never on the services themselves.
func (h *Hooks) Program(f *nft.Family, r servicemodel.Rules, s *Shape) nft.Program {
	b := &builder{at: h, f: f, rules: r, shape: s}
	for _, k := range s.Kinds() {
		b.balances(k)
		b.frontends(k)
	}

	b.leaves(s.Leaves)
	b.dispatch()
	b.ranges()
	b.nodeRanges()
	b.reset()
	b.newPackets()
	b.masquerade()
	if b.affinity() {
		b.learn()
	}
	b.baseChains()
	return b.Program
}

// dispatch builds the chain that decides whether a packet is for a service. The order of precedence
// is: addresses of services, node ports, ranges at addresses, ranges of node ports.
func (b *builder) dispatch() {
	c := b.Chain("dispatch")
	c.Add(b.frontend(KindService).In(KindService.Registry), nft.Goto(KindService.chain))
	for _, p := range b.f.Own(b.rules.NodePorts) {
		c.Add(b.frontend(KindNodePort).In(KindNodePort.Registry), b.nodeAddress(p),
			nft.Goto(KindNodePort.chain))
	}

	if !b.shape.Has(NodeRanges) {
		b.toRanges(c, nft.Goto(chainDispatchRanges))
		return
	}

	b.toRanges(c, nft.Jump(chainDispatchRanges))
	for _, p := range b.f.Own(b.rules.NodePorts) {
		c.Add(b.nodeAddress(p), nft.Goto(chainDispatchNode))
	}
}
