package nftables

import (
	"cmp"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
)

// dispatch makes the chain that finds out whether a packet is for a service. Addresses of services
// precede node ports.
func (b *builder) dispatch() {
	c := b.Chain("dispatch")
	c.Add(b.frontend(kindService).In(kindService.registry), nft.Goto(kindService.chain))
	for _, p := range b.f.Own(b.rules.NodePorts) {
		c.Add(b.frontend(kindNodePort).In(kindNodePort.registry), b.nodeAddress(p),
			nft.Goto(kindNodePort.chain))
	}
}

// loopback lists the loopback addresses at which node ports answer. They answer only this host.
func (b *builder) loopback() []netip.Prefix {
	if b.f != nft.IPv4 {
		return nil
	}
	return rendering.LoopbackNodePorts(&b.rules)
}

// nodeAddress matches packets to an address of this host in the range, except loopback.
func (b *builder) nodeAddress(p netip.Prefix) nft.Rule {
	r := nft.Join(nft.FIBDaddrLocal, b.f.DaddrNotWithin(b.f.Loopback))
	if p.Bits() > 0 {
		r = nft.Join(r, b.f.DaddrWithin(p))
	}
	return r
}

// newPackets makes the chains for new packets after DNAT. Only packets that were not translated can
// be to frontends without endpoints, to the other ports of cluster IPs and to unused addresses.
func (b *builder) newPackets() {
	for _, k := range kinds {
		c := b.Chain(k.noEndpoints)
		c.Add(b.in(k, setDrop), nft.Drop)
		c.Add(b.in(k, setReject), b.answer(b.rules.NoEndpoints))
		// A commit came while the packet was in the chains of type nat. Its client sends again.
		c.Add(nft.Drop)
	}
	translated := func(c *nft.ProgramChain) {
		if b.affinity() {
			// Only the first packet of a flow is remembered, because only then was an endpoint just
			// chosen. Further packets may follow without an answer, such as a SYN that is sent
			// again, when the endpoint is long gone.
			c.Add(nft.CTStatusDNAT, nft.CTUnconfirmed, nft.Goto(chainLearn))
		}
		c.Add(nft.CTStatusDNAT, nft.Return)
	}
	in := b.Chain(chainNewInput)
	translated(in)
	in.Add(b.frontend(kindService).In(kindService.registry), nft.Goto(kindService.noEndpoints))
	for _, at := range b.nodePorts() {
		in.Add(b.frontend(kindNodePort).In(kindNodePort.registry), at,
			nft.Goto(kindNodePort.noEndpoints))
	}
	c := b.Chain(chainNew)
	translated(c)
	c.Add(b.frontend(kindService).In(kindService.registry), nft.Goto(kindService.noEndpoints))
	c.Add(b.f.Daddr.In(setClusterIPs), b.f.Reject())
	for _, p := range b.f.Own(b.rules.ServiceCIDRs) {
		c.Add(b.f.DaddrWithin(p), nft.Drop)
	}
}

// Chains for new packets after DNAT.
const (
	chainNewInput = "new-packets-input" // to this host
	chainNew      = "new-packets"
)

// answer returns the end of a rule that answers packets.
func (b *builder) answer(answer string) nft.Rule {
	switch answer {
	case "drop":
		return nft.Drop
	case answerReset:
		return nft.Goto(chainReset)
	}
	return b.f.Reject()
}

const (
	answerReset = "reset"
	chainReset  = "answer-reset"
)

// reset makes the chain that resets connections, if "reset" is one of the answers.
func (b *builder) reset() {
	if b.rules.NoEndpoints == answerReset || b.rules.Forbidden == answerReset {
		c := b.Chain(chainReset)
		c.Add(nft.L4ProtoTCP, nft.ResetTCP)
		c.Add(b.f.Reject())
	}
}

// filterChains are the base chains that drop and reject new packets to services.
var filterChains = [...]string{"filter-input", "filter-forward", "filter-output"}

// hooks makes the base chains.
func (b *builder) hooks() {
	filter := prioFilter + int32(b.place.prio.Filter)
	if b.shape.has(sourceRanges) {
		b.sources(b.Filter("sources-prerouting", nft.HookPrerouting, prioSources))
		b.sources(b.Filter("sources-output", nft.HookOutput, prioSources))
	}
	b.destinations()
	if b.rules.MasqueradeNeighbours {
		b.neighbours(b.Filter("neighbours-prerouting", nft.HookPrerouting, prioLearn))
	}
	input := b.Filter(filterChains[0], nft.HookInput, filter)
	guard := b.Chain(chainGuard) // empty if nothing needs the guard
	if len(b.loopback()) > 0 {
		guard.Add(b.f.DaddrWithin(b.f.Loopback), b.f.SaddrNotWithin(b.f.Loopback), nft.CTNotKnown,
			nft.CTNotDNAT, nft.Drop)
		input.Add(nft.Jump(chainGuard))
	}
	// A packet of an established connection meets this one rule in each hook.
	input.Add(nft.CTStateNew, nft.Goto(chainNewInput))
	b.Filter(filterChains[1], nft.HookForward, filter).Add(nft.CTStateNew, nft.Goto(chainNew))
	b.Filter(filterChains[2], nft.HookOutput, filter).Add(nft.CTStateNew, nft.Goto(chainNew))
	b.postrouting(b.NAT("nat-postrouting", nft.HookPostrouting, prioSNAT+int32(b.place.prio.SNAT)))
}

// nodePorts matches packets to the addresses at which node ports answer. The guard drops packets
// from elsewhere to loopback addresses.
func (b *builder) nodePorts() (l []nft.Rule) {
	for _, p := range b.f.Own(b.rules.NodePorts) {
		l = append(l, b.nodeAddress(p))
	}
	for _, p := range b.loopback() {
		l = append(l, b.f.DaddrWithin(p))
	}
	return l
}

// chainGuard drops packets from elsewhere to loopback addresses, which the sysctl route_localnet
// would let in (CVE-2020-8558). Other instances recognize the guard by this name.
const chainGuard = "guard-loopback"

// destinations makes the base chains that translate destinations. Only packets of this host are
// translated at loopback addresses.
func (b *builder) destinations() {
	dnat := prioDNAT + int32(b.place.prio.DNAT)
	pre := b.NAT("nat-prerouting", nft.HookPrerouting, dnat)
	out := b.NAT("nat-output", nft.HookOutput, dnat)
	b.users(b.place.dispatch, pre, out)
	local := b.loopback()
	if len(local) > 0 {
		pre.Add(b.f.DaddrWithin(b.f.Loopback), nft.Accept)
	}
	pre.Add(nft.Jump("dispatch"))
	out.Add(nft.Jump("dispatch"))
	for _, p := range local {
		out.Add(b.frontend(kindNodePort).In(kindNodePort.registry), b.f.DaddrWithin(p),
			nft.Goto(kindNodePort.chain))
	}
}

// sources answers connections to restricted frontends from outside their source ranges.
func (b *builder) sources(c *nft.ProgramChain) {
	c.Add(nft.CTStateNew, b.forbidden(), b.answer(cmp.Or(b.rules.Forbidden, "drop")))
}

// forbidden matches packets to restricted frontends from outside their source ranges.
func (b *builder) forbidden() nft.Rule {
	k := b.frontend(kindService)
	return nft.Join(k.In(setRestricted), k.With(b.f.Saddr).NotIn(setSources))
}

// neighbours masquerades connections that leave by the interface by which they came in. The
// endpoint is known only after DNAT, and the kernel looks up its interface only in prerouting
// (nft_fib_validate before Linux 5.13).
func (b *builder) neighbours(c *nft.ProgramChain) {
	service, nodePort := b.asked()
	for _, ours := range []nft.Rule{service.In(kindService.registry),
		nodePort.In(kindNodePort.registry)} {
		c.Add(nft.CTStateNew, nft.CTStatusDNAT, withPorts, ours, nft.FIBDaddrByIIF,
			nft.MarkOr(b.rules.MasqueradeMark))
	}
}

// postrouting masquerades marked packets, and connections of endpoints to themselves.
func (b *builder) postrouting(c *nft.ProgramChain) {
	b.users(b.place.masquerade, c)
	mark, hairpin := b.rules.MasqueradeMark, nft.Concat{b.f.Saddr, b.f.Daddr}
	c.Add(nft.MarkIs(mark, mark), nft.CTStatusDNAT, nft.Jump(chainMasquerade))
	c.Add(nft.CTStatusDNAT, hairpin.In(setHairpins), nft.Masquerade)
}

// masquerade makes the chain that masquerades a marked packet that was sent to a frontend of this
// instance, and clears the mark. The mark alone is not enough: another instance may have the same
// mark, and the bit may mean something else to other programs (bit 14 is in wg-quick's mark,
// 0xca6c).
func (b *builder) masquerade() {
	service, nodePort := b.asked()
	c := b.Chain(chainMasquerade)
	for _, ours := range []nft.Rule{service.In(kindService.registry),
		nodePort.In(kindNodePort.registry)} {
		c.Add(withPorts, ours, nft.MarkXor(b.rules.MasqueradeMark), nft.Masquerade)
	}
}

const chainMasquerade = "marked"

// asked selects, from conntrack, the frontend to which a flow was sent before DNAT: as the key of a
// service, and as the key of a node port.
func (b *builder) asked() (service, nodePort nft.Concat) {
	nodePort = nft.Concat{nft.L4Proto, nft.CTOriginalDPort}
	return append(nft.Concat{b.f.CTDaddr}, nodePort...), nodePort
}
