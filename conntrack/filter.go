package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
)

// Filter selects flows. Every field that is set must match; the zero Filter matches everything.
//
// This package always evaluates the filter itself, so the result is exact on every kernel. It also
// passes some fields to the kernel, which then sends fewer flows. Kernels ignore fields that they
// do not know:
//
// - the family of the addresses, on every kernel;
// - the mark, since Linux 3.4, and the status, since 5.15;
// - the zone, since 6.8;
// - protocol, IPv4 addresses and the ports of TCP and UDP, since 5.8 (CTA_FILTER, commit
// cb8aa9a3affb).
//
// Two things are not passed to the kernel, because some kernels get them wrong and omit flows that
// match. IPv6 addresses: from 5.8 on, kernels invert the comparison (ctnetlink_filter_match_tuple
// uses ipv6_addr_cmp as a test of equality); 7.2.13 still does, 6.12.117 does not. Both directions
// at once: without commit ad81d4daf6a3, the kernel compares the fields of the reply tuple that the
// filter sets for the original tuple. So the reply tuple is passed only if the filter sets no field
// of the original tuple.
type Filter struct {
	// Protocol is the transport protocol; 0 means any.
	Protocol Protocol

	// OriginalSrc is the address of the client.
	OriginalSrc netip.Addr
	// OriginalDst and OriginalDstPort are the destination to which the client sends: for a service,
	// its frontend.
	OriginalDst     netip.Addr
	OriginalDstPort uint16
	// ReplySrc and ReplySrcPort are the address and port that answer: for a service, the endpoint.
	ReplySrc     netip.Addr
	ReplySrcPort uint16

	// Status are the required values of the bits in StatusMask. If StatusMask is 0, the bits in
	// Status must be set.
	Status, StatusMask Status
	// Mark is the connection mark. Only the bits in MarkMask are compared. If MarkMask is 0 and
	// Mark is not, all bits are compared.
	Mark, MarkMask uint32
	// Zone is the conntrack zone; nil means any.
	Zone *uint16
}

// ErrBadFilter says that a filter contradicts itself.
var ErrBadFilter = errors.New("bad conntrack filter")

// Match reports whether the filter selects the flow.
func (f Filter) Match(fl *Flow) bool {
	status, statusMask := f.status()
	mark, markMask := f.mark()
	return f.matchOriginal(fl) &&
		matchAddr(f.ReplySrc, fl.Reply.Src) &&
		(f.ReplySrcPort == 0 || f.ReplySrcPort == fl.Reply.Src.Port()) &&
		(f.Zone == nil || *f.Zone == fl.Zone()) &&
		fl.Status&statusMask == status && fl.Mark&markMask == mark
}

// matchOriginal makes the comparisons of Match that need only the protocol and the original tuple.
func (f *Filter) matchOriginal(fl *Flow) bool {
	return (f.Protocol == 0 || f.Protocol == fl.Protocol) &&
		(f.OriginalDstPort == 0 || f.OriginalDstPort == fl.Original.Dst.Port()) &&
		matchAddr(f.OriginalSrc, fl.Original.Src) &&
		matchAddr(f.OriginalDst, fl.Original.Dst)
}

func matchAddr(want netip.Addr, got netip.AddrPort) bool {
	return !want.IsValid() || want.Unmap() == got.Addr()
}

// status returns the wanted status bits and their mask. It clears wanted bits outside of the mask,
// because the kernel does not.
func (f Filter) status() (status, mask Status) {
	if f.StatusMask == 0 {
		return f.Status, f.Status
	}
	return f.Status & f.StatusMask, f.StatusMask
}

// mark returns the wanted bits of the connection mark and their mask.
func (f Filter) mark() (mark, mask uint32) {
	if f.MarkMask == 0 && f.Mark != 0 {
		return f.Mark, ^uint32(0)
	}
	return f.Mark & f.MarkMask, f.MarkMask
}

// family returns the single family that the filter allows, or familyAny if it allows both.
func (f Filter) family() (family nfFamily, err error) {
	for _, a := range []struct {
		name string
		addr netip.Addr
	}{{"OriginalSrc", f.OriginalSrc}, {"OriginalDst", f.OriginalDst}, {"ReplySrc", f.ReplySrc}} {
		switch {
		case !a.addr.IsValid():
			continue
		case a.addr.Zone() != "":
			return 0, fmt.Errorf("%w: %s: %s has a zone", ErrBadFilter, a.name, a.addr)
		case family == familyAny:
			family = familyOf(a.addr.Unmap())
		case family != familyOf(a.addr.Unmap()):
			return 0, fmt.Errorf("%w: %s: %s is not an address of %s", ErrBadFilter, a.name, a.addr,
				family)
		}
	}

	return family, nil
}

// dumpRequest contains the conditions of a filter that the kernel evaluates. The zero value
// requests the whole table.
type dumpRequest struct {
	Family           nfFamily
	Protocol         Protocol // with the fields below; 0 means that the tuple is not filtered
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Reply            bool // src to dstPort concern the reply tuple, otherwise the original tuple
	Status           Status
	StatusMask       Status
	Mark, MarkMask   uint32
	Zone             *uint16
}

// filtersTuple reports whether the request needs CTA_FILTER.
func (d dumpRequest) filtersTuple() bool {
	return d.Protocol != 0 || d.Src.IsValid() || d.Dst.IsValid()
}

// dumps returns the requests whose answers together contain every flow that the filter selects. No
// flow is in two answers.
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

	if family != familyAny || !d.filtersTuple() {
		return []dumpRequest{d}, nil
	}

	// CTA_FILTER needs a family (EOPNOTSUPP without), so each family has its own request.
	d4, d6 := d, d
	d4.Family, d6.Family = familyIPv4, familyIPv6
	return []dumpRequest{d4, d6}, nil
}

// filterable returns the address if the kernel can compare it. It cannot compare IPv6 addresses,
// see [Filter].
func filterable(a netip.Addr) netip.Addr {
	if a = a.Unmap(); a.Is4() {
		return a
	}
	return netip.Addr{}
}
