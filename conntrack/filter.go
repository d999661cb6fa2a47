package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
)

// Filter says which flows are wanted. Every field that is set must match; the zero Filter matches
// everything.
//
// A filter is always evaluated here, so it is exact on every kernel. What the kernel can evaluate,
// too, is handed down to it, so that it need not send what is not wanted; a kernel that does not
// know a part of it ignores that part:
//
//   - the family, on every kernel;
//   - the mark, since Linux 3.4, and the status, since 5.15;
//   - the zone, since 6.8;
//   - protocol, IPv4 addresses and the ports of TCP and UDP, since 5.8 (CTA_FILTER, commit
//     cb8aa9a3affb).
//
// Two things are not handed down because kernels get them wrong and lose flows that are wanted.
// IPv6 addresses: kernels from 5.8 on compare them the wrong way round
// (ctnetlink_filter_match_tuple takes ipv6_addr_cmp for a test of equality); 7.2.13 still does,
// 6.12.117 does not. Both directions at once: without commit ad81d4daf6a3 the reply tuple is
// compared as far as the original one was to be; so the reply tuple is handed down only if the
// filter says nothing of the original one.
type Filter struct {
	// Family limits the flows to one family. Addresses below imply it.
	Family Family
	// Protocol is the transport protocol; 0 means any.
	Protocol Protocol

	// OriginalSrc is the client.
	OriginalSrc netip.Addr
	// OriginalDst and OriginalDstPort are where the client sends to: for a service, its frontend.
	OriginalDst     netip.Addr
	OriginalDstPort uint16
	// ReplySrc and ReplySrcPort are who answers: for a service, the endpoint.
	ReplySrc     netip.Addr
	ReplySrcPort uint16

	// Status are bits that must be as they are here, of those in StatusMask; if that is 0, of those
	// in Status.
	Status, StatusMask Status
	// Mark is the connection mark, of which the bits in MarkMask count; if that is 0 and Mark is
	// not, all of them.
	Mark, MarkMask uint32
	// Zone is the conntrack zone; nil means any.
	Zone *uint16
}

// ErrBadFilter says that a filter contradicts itself.
var ErrBadFilter = errors.New("bad conntrack filter")

// Match reports whether the filter wants the flow.
func (f Filter) Match(fl *Flow) bool {
	status, statusMask := f.status()
	mark, markMask := f.mark()
	return f.matchOriginal(fl) &&
		matchAddr(f.ReplySrc, fl.Reply.Src) &&
		(f.ReplySrcPort == 0 || f.ReplySrcPort == fl.Reply.Src.Port()) &&
		(f.Zone == nil || *f.Zone == fl.Zone()) &&
		fl.Status&statusMask == status && fl.Mark&markMask == mark
}

// matchOriginal is the part of Match that needs no more than the protocol and the original tuple.
func (f *Filter) matchOriginal(fl *Flow) bool {
	return (f.Protocol == 0 || f.Protocol == fl.Protocol) &&
		(f.OriginalDstPort == 0 || f.OriginalDstPort == fl.Original.Dst.Port()) &&
		(f.Family == AnyFamily || f.Family == fl.Family()) &&
		matchAddr(f.OriginalSrc, fl.Original.Src) &&
		matchAddr(f.OriginalDst, fl.Original.Dst)
}

func matchAddr(want netip.Addr, got netip.AddrPort) bool {
	return !want.IsValid() || want.Unmap() == got.Addr()
}

// status returns the status bits wanted and which count. No bit is wanted that does not count: the
// kernel compares without looking.
func (f Filter) status() (status, mask Status) {
	if f.StatusMask == 0 {
		return f.Status, f.Status
	}
	return f.Status & f.StatusMask, f.StatusMask
}

// mark is status for the connection mark.
func (f Filter) mark() (mark, mask uint32) {
	if f.MarkMask == 0 && f.Mark != 0 {
		return f.Mark, ^uint32(0)
	}
	return f.Mark & f.MarkMask, f.MarkMask
}

// family returns the one family that the filter allows, AnyFamily if it allows both.
func (f Filter) family() (Family, error) {
	family := f.Family
	if family != AnyFamily && family != IPv4 && family != IPv6 {
		return 0, fmt.Errorf("%w: Family: %s is not a family", ErrBadFilter, family)
	}
	for _, a := range []struct {
		name string
		addr netip.Addr
	}{{"OriginalSrc", f.OriginalSrc}, {"OriginalDst", f.OriginalDst}, {"ReplySrc", f.ReplySrc}} {
		switch {
		case !a.addr.IsValid():
			continue
		case a.addr.Zone() != "":
			return 0, fmt.Errorf("%w: %s: %s has a zone", ErrBadFilter, a.name, a.addr)
		case family == AnyFamily:
			family = familyOf(a.addr.Unmap())
		case family != familyOf(a.addr.Unmap()):
			return 0, fmt.Errorf("%w: %s: %s is not an address of %s", ErrBadFilter, a.name, a.addr,
				family)
		}
	}
	return family, nil
}

// dumpRequest is what the kernel is asked to do about a filter. The zero value asks for the whole
// table.
type dumpRequest struct {
	Family           Family
	Protocol         Protocol // with everything below it: 0 means that the tuple is not filtered
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Reply            bool // src to dstPort are about the reply tuple, else about the original
	Status           Status
	StatusMask       Status
	Mark, MarkMask   uint32
	Zone             *uint16
}

// filtersTuple reports whether the request needs CTA_FILTER.
func (d dumpRequest) filtersTuple() bool {
	return d.Protocol != 0 || d.Src.IsValid() || d.Dst.IsValid()
}

// dumps returns the requests whose answers hold every flow that the filter wants. They overlap in
// nothing.
func (f Filter) dumps() ([]dumpRequest, error) {
	family, err := f.family()
	if err != nil {
		return nil, err
	}
	d := dumpRequest{Family: family, Protocol: f.Protocol, Zone: f.Zone}
	d.Status, d.StatusMask = f.status()
	d.Mark, d.MarkMask = f.mark()
	ports := f.Protocol == TCP || f.Protocol == UDP
	switch {
	case f.OriginalSrc.IsValid() || f.OriginalDst.IsValid() || ports && f.OriginalDstPort != 0:
		d.Src, d.Dst = filterable(f.OriginalSrc), filterable(f.OriginalDst)
		if ports {
			d.DstPort = f.OriginalDstPort
		}
	case f.ReplySrc.IsValid() || ports && f.ReplySrcPort != 0:
		d.Reply, d.Src = true, filterable(f.ReplySrc)
		if ports {
			d.SrcPort = f.ReplySrcPort
		}
	}
	if family != AnyFamily || !d.filtersTuple() {
		return []dumpRequest{d}, nil
	}
	// CTA_FILTER needs a family (EOPNOTSUPP without): ask for one after the other.
	d4, d6 := d, d
	d4.Family, d6.Family = IPv4, IPv6
	return []dumpRequest{d4, d6}, nil
}

// filterable returns the address as far as the kernel can compare it: an IPv6 address it cannot,
// see [Filter].
func filterable(a netip.Addr) netip.Addr {
	if a = a.Unmap(); a.Is4() {
		return a
	}
	return netip.Addr{}
}

// compareRequests orders requests that differ in what a [Matcher] sets.
func compareRequests(a, b dumpRequest) int {
	return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Protocol, b.Protocol),
		cmp.Compare(a.DstPort, b.DstPort), a.Dst.Compare(b.Dst))
}
