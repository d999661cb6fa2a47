package ipvs

import (
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// builder makes the chains of a companion table: they depend on the node-wide rules only.
type builder struct {
	nft.Program
	f     *nft.Family
	rules servicemodel.Rules
}

func newProgram(f *nft.Family, r servicemodel.Rules) nft.Program {
	b := &builder{f: f, rules: r}
	for _, k := range kinds {
		b.frontends(k)
	}
	b.admit()
	b.masquerade()
	b.hooks()
	return b.Program
}

// frontend selects the key of a frontend from the packet.
func (b *builder) frontend(kind string) nft.Concat { return b.f.Frontend(kind == kindNodePort) }

// in matches packets to a frontend in a set.
func (b *builder) in(kind, set string) nft.Rule { return b.frontend(kind).In(set) }

// flowIn matches packets of flows that were sent to a frontend in a set, as conntrack knows.
func (b *builder) flowIn(kind, set string) nft.Rule {
	key := nft.Concat{nft.CTOriginalProtocol, nft.CTOriginalDPort}
	if kind == kindService {
		return append(nft.Concat{b.f.CTDaddr}, key...).In(set)
	}
	return nft.Join(b.f.CTDaddr.In(setNodeAddrs), key.In(set))
}

// frontends makes the chains that decide about the first packet of a connection to a frontend.
func (b *builder) frontends(kind string) {
	external := b.Chain(kind + "-external")
	external.Add(b.in(kind, kind+setExtDrop), nft.Drop)
	external.Add(b.in(kind, kind+setExtReject), b.f.Reject())
	external.Add(nft.Accept)

	key, notPods := b.frontend(kind), b.f.NotFromPods(b.rules.LocalPods)
	c := b.Chain(kind)
	if kind == kindService {
		c.Add(key.In(setRestricted), key.With(b.f.Saddr).NotIn(setSources), nft.Drop)
	}
	c.Add(key.In(kind+setSplit), notPods, nft.FIBSaddrNotLocal, nft.Goto(kind+"-external"))
	c.Add(key.In(kind+setDrop), nft.Drop)
	c.Add(key.In(kind+setReject), b.f.Reject())
	c.Add(nft.SetMark(key.Map(kind + setMarks)))
	c.Add(nft.Accept)
}

// admit makes the chains for the first packets of connections.
func (b *builder) admit() {
	admit := b.Chain("admit")
	admit.Add(b.in(kindService, kindService+"s"), nft.Goto(kindService))
	admit.Add(b.in(kindNodePort, kindNodePort+"s"), b.f.Daddr.In(setNodeAddrs),
		nft.Goto(kindNodePort))
	unused := b.Chain("no-service")
	unused.Add(b.f.Daddr.In(setClusterIPs), b.f.Reject())
	for _, p := range b.f.Own(b.rules.ServiceCIDRs) {
		unused.Add(b.f.DaddrWithin(p), nft.Drop)
	}
}

// masquerade makes the chains that decide, for the first packet of a connection that IPVS has sent
// on, whether it is masqueraded.
func (b *builder) masquerade() {
	notPods := b.f.NotFromPods(b.rules.LocalPods)
	for _, k := range kinds {
		c := b.Chain(k + "-postrouting")
		c.Add(nft.Concat{b.f.Saddr, b.f.Daddr}.In(setHairpins), nft.Masquerade)
		if k == kindService {
			// What the host sends to a service from the address of the service itself, as it does
			// if the address is bound to a device: answers must come back here.
			c.Add(nft.Concat{b.f.Saddr, nft.CTOriginalProtocol, nft.CTOriginalDPort}.
				In(kindService+"s"), nft.Masquerade)
		}
		c.Add(b.flowIn(k, k+setMasqAll), nft.Masquerade)
		c.Add(b.flowIn(k, k+setMasqNotPod), notPods, nft.Masquerade)
		c.Add(b.flowIn(k, k+setMasqHost), notPods, nft.FIBSaddrLocal, nft.Masquerade)
	}
}

// Priorities (enum nf_ip_hook_priorities in include/uapi/linux/netfilter_ipv4.h). IPVS works at -98
// in the output hook and at 99 in the input hook. Packets are led there after others have had their
// turn to translate them, at -100: what another backend has translated, or still translates while
// both are in place, is none of ours.
const (
	prioSent     = -300
	prioUnmark   = -299
	prioSteer    = -99
	prioUnused   = -97
	prioSNAT     = 100
	prioUnmarkIn = 110
	prioReset    = 110
)

// Matches of the bits of the mark, and what sets them.
var (
	isSplit = nft.MarkIs(splitMarks, splitMarks)
	isSteer = nft.MarkIs(steerBit, steerBit)
	isSent  = nft.MarkIs(splitMarks, sentMark)
	isUnled = nft.MarkIs(splitMarks, 0)
	steer   = nft.MarkOr(steerBit)
)

// hooks makes the base chains.
func (b *builder) hooks() {
	services := b.in(kindService, kindService+"s")
	// Every instance has marked what it sends on unchanged before any takes marks away.
	sent := b.Filter("sent-output", nft.HookOutput, prioSent)
	sent.Add(isSplit, services, nft.MarkAndOr(0, sentMark))
	sent.Add(isSteer, services, nft.MarkAndOr(^splitMarks, sentMark))
	out := b.Filter("unmark-output", nft.HookOutput, prioUnmark)
	out.Add(isSplit, nft.MarkAnd(0))
	out.Add(isSteer, nft.MarkAnd(^steerBit))
	post := b.Filter("unmark-postrouting", nft.HookPostrouting, prioUnmarkIn)
	post.Add(isSplit, nft.MarkAnd(0))
	post.Add(isSteer, nft.MarkAnd(^steerBit))
	post.Add(isSent, nft.MarkAnd(^splitMarks))

	b.lead(services)
	// A packet that IPVS did not translate belongs to a connection that IPVS has forgotten. The
	// address is nobody's, so the machine itself cannot answer.
	input := b.Filter("input", nft.HookInput, prioReset)
	input.Add(isSteer, nft.L4ProtoTCP, nft.FIBDaddrNotLocal, nft.ResetTCP)

	snat := b.NAT("postrouting", nft.HookPostrouting, prioSNAT)
	for _, k := range kinds {
		snat.Add(b.flowIn(k, k+"s"), nft.Goto(k+"-postrouting"))
	}
}

// lead makes the chains that lead packets to IPVS.
func (b *builder) lead(services nft.Rule) {
	pre := b.Filter("prerouting", nft.HookPrerouting, prioSteer)
	pre.Add(nft.CTDirOriginal, nft.CTNotDNAT, b.flowIn(kindService, kindService+"s"), steer)
	pre.Add(backwards, services, nft.FIBDaddrNotLocal, steer)
	// Where packets are forwarded unchanged, answers need not come this way: conntrack, which then
	// sees half of a connection, takes it for invalid.
	pre.Add(b.in(kindService, setRouted), steer)
	out := b.Route("output", nft.HookOutput, prioSteer)
	out.Add(isSent, nft.Accept)
	out.Add(services, nft.CTDirOriginal, steer)
	out.Add(backwards, services, nft.FIBDaddrNotLocal, steer)
	for _, c := range []*nft.ProgramChain{pre, out} {
		c.Add(nft.CTStateNew, nft.Jump("admit"))
	}
	// What is for no service of ours may be for one of another instance, which has had its turn to
	// lead it to IPVS by now.
	for _, c := range []*nft.ProgramChain{
		b.Filter("unused-prerouting", nft.HookPrerouting, prioUnused),
		b.Filter("unused-output", nft.HookOutput, prioUnused)} {
		c.Add(isUnled, nft.CTStateNew, nft.FIBDaddrNotLocal, nft.Jump("no-service"))
	}
}

// backwards matches what conntrack takes for answers in a flow that it does not translate. If the
// first packet that conntrack sees of a connection comes from the endpoint, since the flow was
// deleted or the table emptied, it makes a flow of it in which the endpoint is the client: IPVS has
// translated the packet by then, and conntrack expects answers to the service's address. What the
// client sends is to go to IPVS as before.
var backwards = nft.Join(nft.CTDirReply, nft.CTUntranslated)
