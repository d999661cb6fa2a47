package form

import (
	"net/netip"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// builder builds the rules of one family.
type builder struct {
	nft.Program
	at    *Hooks
	f     *nft.Family
	rules servicemodel.Rules
	shape *Shape
}

// affinity reports whether clients are remembered.
func (b *builder) affinity() bool { return len(b.shape.Affinity) > 0 }

// frontend selects the key of a frontend of a kind from the packet.
func (b *builder) frontend(k *Kind) nft.Concat {
	switch k { // the packet's destination holds a range
	case KindRange:
		return nft.Concat{b.f.CTDaddr, nft.L4Proto, b.f.Daddr}
	case KindNodeRange:
		return nft.Concat{nft.L4Proto, b.f.Daddr}
	}

	return b.f.Frontend(k == KindNodePort)
}

// in matches packets whose frontend is in one of the sets of a kind.
func (b *builder) in(k *Kind, set string) nft.Rule { return b.frontend(k).In(k.Prefix + set) }

// dnat adds rules that send a packet to a slot in the map of a way.
func (b *builder) dnat(c *nft.ProgramChain, k *Kind, prefix string, w Feature, slot nft.Selector) {
	b.translate(c, k, b.frontend(k).With(slot).Map(prefix+WayNames[w]+SetEndpoints))
}

// translate adds rules that send a packet to the endpoint in a map of a kind.
func (b *builder) translate(c *nft.ProgramChain, k *Kind, to nft.Mapped) {
	switch {
	case !k.isRange():
		c.Add(b.f.DNAT(to))
		return
	case !b.shape.Has(changePort(k)):
		c.Add(b.f.DNATAddr(to))
		return
	}

	frontend := b.frontend(k)
	c.Add(frontend.NotIn(k.Prefix+SetToPort), b.f.DNATAddr(to))
	if b.shape.Has(ToPortOf(k)) {
		c.Add(b.f.DNATAddrPort(to, frontend.Map(k.Prefix+SetPorts)))
	}
	if b.shape.Has(ShiftedOf(k)) {
		c.Add(b.f.DNATAddrPort(to, frontend.With(nft.DPort).Map(k.Prefix+SetShifts)))
	}
}

// original returns the conntrack fields that identify the frontend of a flow, which is its
// destination before DNAT: as the key of a service, and as the key of a node port.
func (b *builder) original() (service, nodePort nft.Concat) {
	nodePort = nft.Concat{nft.L4Proto, nft.CTOriginalDPort}
	return append(nft.Concat{b.f.CTDaddr}, nodePort...), nodePort
}

// withPorts matches the protocols that have ports. Without it, nft 1.0.6 cannot load a
// concatenation with ct proto-dst from text. The protocols are an anonymous set, because a named
// set would not give nft the types that it needs.
var withPorts = nft.CTProtocol(servicemodel.TCP, servicemodel.UDP, servicemodel.SCTP)

// loopback lists the loopback addresses at which node ports answer to this host.
func (b *builder) loopback() []netip.Prefix {
	if b.f != nft.IPv4 {
		return nil
	}
	return sysctls.LoopbackNodePorts(&b.rules)
}

// nodeAddress matches packets to addresses of this host in the prefix p, except loopback addresses.
func (b *builder) nodeAddress(p netip.Prefix) nft.Rule {
	r := nft.Join(nft.FIBDaddrLocal, b.f.DaddrNotWithin(b.f.Loopback))
	if p.Bits() > 0 {
		r = nft.Join(r, b.f.DaddrWithin(p))
	}
	return r
}

// nodePorts matches packets to the addresses at which node ports answer. The guard drops packets to
// loopback addresses from other hosts.
func (b *builder) nodePorts() (l []nft.Rule) {
	for _, p := range b.f.Own(b.rules.NodePorts) {
		l = append(l, b.nodeAddress(p))
	}
	for _, p := range b.loopback() {
		l = append(l, b.f.DaddrWithin(p))
	}
	return l
}

// forbidden matches packets to restricted frontends from outside their source ranges.
func (b *builder) forbidden(k *Kind) nft.Rule {
	key := b.frontend(k)
	return nft.Join(key.In(k.SetRestricted()), key.With(b.f.Saddr).NotIn(k.SetSources()))
}

// ours returns matches for flows that were sent to frontends of this instance, except ranges of
// node ports. For a flow to a range, only the address is compared.
func (b *builder) ours() []nft.Rule {
	service, nodePort := b.original()
	l := []nft.Rule{service.In(KindService.Registry), nodePort.In(KindNodePort.Registry)}
	if b.shape.Has(Ranges) {
		l = append(l, b.f.CTDaddr.In(SetRangeAddresses))
	}
	return l
}
