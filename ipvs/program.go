package ipvs

import (
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// builder builds the chains of a companion table. They depend only on the node-wide rules.
type builder struct {
	nft.Program
	f     *nft.Family
	rules servicemodel.Rules
	mark  uint32 // of the instance
	shape shape
}

func newProgram(f *nft.Family, r servicemodel.Rules, mark uint32, s shape) nft.Program {
	b := &builder{f: f, rules: r, mark: mark, shape: s}
	reset := b.Chain(chainReset)
	reset.Add(nft.L4ProtoTCP, nft.ResetTCP)
	reset.Add(b.f.Reject())
	for _, k := range b.shape.kinds() {
		b.frontends(k)
	}
	admit := b.Chain("admit") // the first packets of connections
	admit.Add(b.in(kindService, kindService+"s"), nft.Goto(kindService))
	admit.Add(b.in(kindNodePort, kindNodePort+"s"), b.f.Daddr.In(setNodeAddrs),
		nft.Goto(kindNodePort))
	unused := b.Chain("no-service")
	unused.Add(b.f.Daddr.In(setClusterIPs), b.f.Reject())
	for _, p := range b.f.Own(b.rules.ServiceCIDRs) {
		unused.Add(b.f.DaddrWithin(p), nft.Drop)
	}
	b.masquerade()
	b.ranges()
	b.hooks()
	return b.Program
}

// frontend selects the key of a frontend from the packet. A packet to a range already has the mark
// of the range.
func (b *builder) frontend(kind string) nft.Concat {
	if kind == kindRange {
		return nft.Concat{nft.Mark}
	}
	return b.f.Frontend(kind == kindNodePort)
}

// in matches packets to a frontend in a set.
func (b *builder) in(kind, set string) nft.Rule { return b.frontend(kind).In(set) }

// flow selects the key of the frontend to which a flow was sent, according to conntrack.
func (b *builder) flow(kind string) nft.Concat {
	switch kind {
	case kindService:
		return nft.Concat{b.f.CTDaddr, nft.CTOriginalProtocol, nft.CTOriginalDPort}
	case kindRange:
		return b.frontend(kind)
	}

	return nft.Concat{nft.CTOriginalProtocol, nft.CTOriginalDPort}
}

// flowIn matches packets of flows that were sent to a frontend in a set.
func (b *builder) flowIn(kind, set string) nft.Rule {
	if kind == kindNodePort {
		return nft.Join(b.f.CTDaddr.In(setNodeAddrs), b.flow(kind).In(set))
	}
	return b.flow(kind).In(set)
}

// frontends builds the chains for the first packet of a connection to a frontend.
func (b *builder) frontends(kind string) {
	external := b.Chain(kind + "-external")
	external.Add(b.in(kind, kind+setExtDrop), nft.Drop)
	external.Add(b.in(kind, kind+setExtReject), b.noEndpoints())
	external.Add(nft.Accept)

	key, notPods := b.frontend(kind), b.f.NotFromPods(b.rules.LocalPods)
	c := b.Chain(kind)
	switch kind {
	case kindService:
		c.Add(key.In(setRestricted), key.With(b.f.Saddr).NotIn(setSources), nft.Drop)
	case kindRange:
		c.Add(key.In(setRangeRestricted), key.With(b.f.Saddr).NotIn(setRangeSources), nft.Drop)
	}

	c.Add(key.In(kind+setSplit), notPods, nft.FIBSaddrNotLocal, nft.Goto(kind+"-external"))
	c.Add(key.In(kind+setDrop), nft.Drop)
	c.Add(key.In(kind+setReject), b.noEndpoints())
	c.Add(nft.SetMark(key.Map(kind + setMarks)))
	c.Add(nft.Accept)
}

// chainReset resets connections of TCP, and rejects other packets.
const chainReset = "answer-reset"

// noEndpoints returns the end of a rule that answers packets to frontends without endpoints.
func (b *builder) noEndpoints() nft.Rule {
	if b.rules.NoEndpoints == "reset" {
		return nft.Goto(chainReset)
	}
	return b.f.Reject()
}

// masquerade builds the chains that decide whether a connection is masqueraded, at the first packet
// that IPVS has sent on.
func (b *builder) masquerade() {
	notPods := b.f.NotFromPods(b.rules.LocalPods)
	for _, k := range b.shape.kinds() {
		as := b.masqueradeAs(k)
		c := b.Chain(k + "-postrouting")
		if k == kindRange {
			c.Add(nft.MarkXor(sentMark), b.f.Saddr.In(setRangeAddresses), nft.Masquerade)
		}
		if k == kindService {
			// If the address of a service is bound to a device, packets of the host to the service
			// have this address as their source. The answers must come back here.
			c.Add(nft.Concat{b.f.Saddr, nft.CTOriginalProtocol, nft.CTOriginalDPort}.
				In(kindService+"s"), nft.Masquerade)
		}

		c.Add(b.flowIn(k, k+setMasqAll), as)
		c.Add(b.flowIn(k, k+setMasqNotPod), notPods, as)
		c.Add(b.flowIn(k, k+setMasqHost), notPods, nft.FIBSaddrLocal, as)
		c.Add(nft.Concat{b.f.Saddr, b.f.Daddr}.In(setHairpins), nft.Masquerade)
	}
}

// masqueradeAs returns the end of a rule that masquerades packets to frontends of a kind, and
// builds the chain for the frontends that set the source.
func (b *builder) masqueradeAs(kind string) nft.Rule {
	if b.shape&givenSources == 0 {
		return nft.Masquerade
	}
	c := b.Chain(kind + "-source")
	c.Add(b.f.SNATAddr(b.flow(kind).Map(kind + setMasqIPs)))
	c.Add(nft.Masquerade)
	return nft.Goto(c.Name)
}

// Priorities (enum nf_ip_hook_priorities in include/uapi/linux/netfilter_ipv4.h). IPVS works at -98
// in the output hook and at 99 in the input hook. Packets are marked after other programs could
// translate them, at -100. A packet that another backend has translated, or still translates while
// both are in place, is not ours.
const (
	prioUnmark   = -300
	prioSteer    = -99
	prioUnused   = -97
	prioSNAT     = 100
	prioUnmarkIn = 110
	prioReset    = 110
)

// marked matches packets with a mark of the instance and of a kind.
func (b *builder) marked(kind uint32) nft.Rule { return nft.MarkIs(kindMask, b.mark|kind) }

// steer marks packets for delivery to IPVS. It keeps the lower bits, because other programs may use
// them.
func (b *builder) steer() nft.Rule { return nft.MarkAndOr(^kindMask, b.mark) }

func (b *builder) hooks() {
	services := b.in(kindService, kindService+"s")
	out := b.Filter("unmark-output", nft.HookOutput, prioUnmark)
	out.Add(b.marked(splitMark), services, nft.MarkAndOr(0, b.mark|sentMark))
	out.Add(b.marked(0), services, nft.MarkAndOr(^kindMask, b.mark|sentMark))
	out.Add(b.marked(splitMark), b.sent())
	out.Add(b.marked(0), nft.MarkAnd(^kindMask))
	post := b.Filter("unmark-postrouting", nft.HookPostrouting, prioUnmarkIn)
	post.Add(b.marked(splitMark), nft.MarkAnd(0))
	b.addIfRanges(post, b.marked(splitMark|sentMark), nft.MarkAnd(0))
	post.Add(nft.MarkIs(ownMask, b.mark), nft.MarkAnd(^kindMask))

	b.lead(services)

	// A packet that IPVS did not translate belongs to a connection that IPVS has forgotten. No
	// device has the address, so the machine itself cannot answer.
	input := b.Filter("input", nft.HookInput, prioReset)
	input.Add(b.marked(0), nft.L4ProtoTCP, nft.FIBDaddrNotLocal, nft.ResetTCP)
	b.addIfRanges(input, b.marked(splitMark), nft.L4ProtoTCP, nft.FIBDaddrNotLocal, nft.ResetTCP)

	snat := b.NAT("postrouting", nft.HookPostrouting, prioSNAT)
	for _, k := range kinds {
		snat.Add(b.flowIn(k, k+"s"), nft.Goto(k+"-postrouting"))
	}

	b.addIfRanges(snat, b.marked(splitMark|sentMark), nft.Goto(kindRange+"-postrouting"))
}

// lead builds the chains that deliver packets to IPVS.
func (b *builder) lead(services nft.Rule) {
	pre := b.Filter("prerouting", nft.HookPrerouting, prioSteer)
	pre.Add(nft.CTDirOriginal, nft.CTNotDNAT, b.flowIn(kindService, kindService+"s"), b.steer())
	pre.Add(backwards, services, nft.FIBDaddrNotLocal, b.steer())

	// If packets are forwarded unchanged, answers may take a different path. Then conntrack sees
	// only half of the connection and considers it invalid.
	pre.Add(b.in(kindService, setRouted), b.steer())
	out := b.Route("output", nft.HookOutput, prioSteer)
	out.Add(b.marked(sentMark), nft.Accept)
	b.addIfRanges(out, b.marked(splitMark|sentMark), nft.Accept)
	out.Add(services, nft.CTDirOriginal, b.steer())
	out.Add(backwards, services, nft.FIBDaddrNotLocal, b.steer())
	b.leadRanges(pre, out)
	for _, c := range []*nft.ProgramChain{pre, out} {
		c.Add(nft.CTStateNew, nft.Jump("admit"))
	}

	// A packet that matches none of our services may match a service of another instance. By then,
	// that instance has marked it.
	for _, c := range []*nft.ProgramChain{
		b.Filter("unused-prerouting", nft.HookPrerouting, prioUnused),
		b.Filter("unused-output", nft.HookOutput, prioUnused)} {
		c.Add(nft.MarkIs(allMarks, allMarks), nft.Accept)
		c.Add(nft.CTStateNew, nft.FIBDaddrNotLocal, nft.Jump("no-service"))
	}
}

// backwards matches packets that conntrack mistakes for answers in an untranslated flow. After the
// flow was deleted or the table emptied, the first packet that conntrack sees of a connection may
// come from the endpoint. Conntrack then creates a flow with the endpoint as its client. IPVS has
// already translated the packet, so conntrack expects answers to the service's address. The
// client's packets must reach IPVS as before.
var backwards = nft.Join(nft.CTDirReply, nft.CTUntranslated)
