package nft

import (
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

// Family contains the differences between the tables of the families ip and ip6.
type Family struct {
	Name     string // in nft's language
	Model    servicemodel.Family
	NFProto  uint8 // NFPROTO_IPV4, NFPROTO_IPV6 (include/uapi/linux/netfilter.h)
	AddrLen  int   // bytes of an address
	Addr     Field // an address as a field of a set
	Any      netip.Addr
	Loopback netip.Prefix

	// SaddrOffset and DaddrOffset are the offsets of the addresses in the network header.
	SaddrOffset, DaddrOffset uint32
	// Saddr and Daddr select the addresses of the packet. CTSaddr and CTDaddr select the addresses
	// of its flow's original direction.
	Saddr, Daddr, CTSaddr, CTDaddr Selector
	// CTReplySaddr selects the source address of the flow's reply direction.
	CTReplySaddr Selector

	icmp            string // in nft's language
	portUnreachable uint8  // the code of ICMP
}

// The two families.
var (
	IPv4 = &Family{
		Name: "ip", Model: servicemodel.IPv4, NFProto: 2, AddrLen: 4, Addr: fieldIPv4Addr,
		Any: netip.IPv4Unspecified(), Loopback: netip.MustParsePrefix("127.0.0.0/8"),
		SaddrOffset: 12, DaddrOffset: 16,
		Saddr:        address("ip saddr", 12, 4),
		Daddr:        address("ip daddr", 16, 4),
		CTSaddr:      ctOriginal("ip saddr", 4, ctSrcIP),
		CTDaddr:      ctOriginal("ip daddr", 4, ctDstIP),
		CTReplySaddr: ctReply("ip saddr", 4, ctSrcIP),
		icmp:         "icmp", portUnreachable: 3, // ICMP_PORT_UNREACH
	}
	IPv6 = &Family{
		Name: "ip6", Model: servicemodel.IPv6, NFProto: 10, AddrLen: 16, Addr: fieldIPv6Addr,
		Any: netip.IPv6Unspecified(), Loopback: netip.MustParsePrefix("::1/128"),
		SaddrOffset: 8, DaddrOffset: 24,
		Saddr:        address("ip6 saddr", 8, 16),
		Daddr:        address("ip6 daddr", 24, 16),
		CTSaddr:      ctOriginal("ip6 saddr", 16, ctSrcIP6),
		CTDaddr:      ctOriginal("ip6 daddr", 16, ctDstIP6),
		CTReplySaddr: ctReply("ip6 saddr", 16, ctSrcIP6),
		icmp:         "icmpv6", portUnreachable: 4, // ICMPV6_PORT_UNREACH
	}
)

// ServedBy reports whether an instance with these rules serves the family.
func (f *Family) ServedBy(r *servicemodel.Rules) bool {
	return r.OnlyFamily == 0 || r.OnlyFamily == f.Model
}

// Families are both families. Their tables are written in this order.
var Families = [2]*Family{IPv4, IPv6}

// FamilyIndex returns the index in [Families] of the family of an address.
func FamilyIndex(a netip.Addr) int {
	if servicemodel.FamilyOf(a) == servicemodel.IPv4 {
		return 0
	}
	return 1
}
