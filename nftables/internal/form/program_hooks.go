package form

import (
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
)

// users adds a user-defined chain if it is configured, and lets other chains jump to it.
func (b *builder) users(chain string, from ...*nft.ProgramChain) {
	if chain == "" {
		return
	}
	b.Chain(chain)
	for _, c := range from {
		c.Add(nft.Jump(chain))
	}
}

// FilterChains are the base chains that drop and reject new packets to services.
var FilterChains = [...]string{"filter-input", "filter-forward", "filter-output"}

func (b *builder) baseChains() {
	filter := prioFilter + int32(b.at.Filter)
	if b.shape.Has(SourceRanges) {
		b.sources(b.Filter("sources-prerouting", nft.HookPrerouting, prioSources))
		b.sources(b.Filter("sources-output", nft.HookOutput, prioSources))
	}

	b.destinations()
	if b.rules.MasqueradeNeighbours {
		b.neighbours(b.Filter("neighbours-prerouting", nft.HookPrerouting, prioLearn))
	}
	input := b.Filter(FilterChains[0], nft.HookInput, filter)
	guard := b.Chain(ChainGuard) // empty if nothing needs the guard
	if len(b.loopback()) > 0 {
		guard.Add(b.f.DaddrWithin(b.f.Loopback), b.f.SaddrNotWithin(b.f.Loopback), nft.CTNotKnown,
			nft.CTNotDNAT, nft.Drop)
		input.Add(nft.Jump(ChainGuard))
	}

	// A packet of an established connection is compared with this one rule in each hook.
	input.Add(nft.CTStateNew, nft.Goto(chainNewInput))
	b.Filter(FilterChains[1], nft.HookForward, filter).Add(nft.CTStateNew, nft.Goto(chainNew))
	b.Filter(FilterChains[2], nft.HookOutput, filter).Add(nft.CTStateNew, nft.Goto(chainNew))
	b.postrouting(b.NAT("nat-postrouting", nft.HookPostrouting, prioSNAT+int32(b.at.SNAT)))
}

// ChainGuard drops packets to loopback addresses from other hosts, which the sysctl route_localnet
// would let in (CVE-2020-8558). Other instances recognize the guard by this name.
const ChainGuard = sysctls.GuardChain

// destinations builds the base chains that translate destinations. At loopback addresses, they
// translate only packets of this host.
func (b *builder) destinations() {
	dnat := prioDNAT + int32(b.at.DNAT)
	pre := b.NAT("nat-prerouting", nft.HookPrerouting, dnat)
	out := b.NAT("nat-output", nft.HookOutput, dnat)
	b.users(b.at.Dispatch, pre, out)
	local := b.loopback()
	if len(local) > 0 {
		pre.Add(b.f.DaddrWithin(b.f.Loopback), nft.Accept)
	}
	pre.Add(nft.Jump("dispatch"))
	out.Add(nft.Jump("dispatch"))
	for _, p := range local {
		out.Add(b.frontend(KindNodePort).In(KindNodePort.Registry), b.f.DaddrWithin(p),
			nft.Goto(KindNodePort.chain))
		if b.shape.Has(NodeRanges) {
			out.Add(b.f.DaddrWithin(p), nft.Goto(chainDispatchNode))
		}
	}
}

// sources answers connections to restricted frontends from outside their source ranges.
func (b *builder) sources(c *nft.ProgramChain) {
	c.Add(nft.CTStateNew, b.forbidden(KindService), b.forbid())
	if b.shape.Has(Ranges) {
		c.Add(nft.CTStateNew, b.f.Daddr.In(SetRangeAddresses), nft.Jump(chainSourceRanges))
	}
}

// neighbours masquerades connections that leave through the interface on which they arrived. The
// endpoint is known only after DNAT, and the kernel looks up its interface only in prerouting
// (nft_fib_validate before Linux 5.13).
func (b *builder) neighbours(c *nft.ProgramChain) {
	for _, ours := range b.ours() {
		c.Add(nft.CTStateNew, nft.CTStatusDNAT, withPorts, ours, nft.FIBDaddrByIIF,
			nft.MarkOr(b.rules.MasqueradeMark))
	}

	if b.shape.Has(NodeRanges) {
		c.Add(nft.CTStateNew, nft.CTStatusDNAT, nft.FIBDaddrByIIF, nft.Jump(chainNearNode))
	}
}

// postrouting masquerades marked packets, and connections of endpoints to themselves.
func (b *builder) postrouting(c *nft.ProgramChain) {
	b.users(b.at.Masquerade, c)
	mark, hairpin := b.rules.MasqueradeMark, nft.Concat{b.f.Saddr, b.f.Daddr}
	c.Add(nft.MarkIs(mark, mark), nft.CTStatusDNAT, nft.Jump(chainMasquerade))
	c.Add(nft.CTStatusDNAT, hairpin.In(SetHairpins), nft.Masquerade)
}
