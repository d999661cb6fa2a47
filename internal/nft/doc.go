// Package nft encodes and decodes the objects of nf_tables: tables, sets with their elements,
// chains, and rules with their expressions, in the families ip and ip6.
//
// It writes the tables of the nftables and the ipvs backend in two ways: an [Encoder] writes
// messages to the kernel, and a [Text] writes commands of nft. Rules consist of matches and
// statements. Each of these has its text and its expressions, so the code reads like nft's listing
// of the ruleset:
//
//	c := p.Filter("filter-input", nft.HookInput, 0)
//	c.Add(nft.CTStateNew, key.In("services"), nft.Jump("no-endpoints"))
//
//	chain filter-input {
//		type filter hook input priority 0; policy accept;
//		ct state new ip daddr . meta l4proto . th dport @services jump no-endpoints
//	}
//
// The iptables backend has many rules, and needs no text for them. It encodes them with
// [Encoder.BeginRule], [AppendPayload] and related functions, which do not allocate.
//
// The numbers of attributes and enums come from include/uapi/linux/netfilter/nf_tables.h.
package nft
