// Package nft is what is known of nf_tables: families, tables, sets with their elements, chains,
// and rules with their expressions.
//
// The tables of the nftables and the ipvs backend are written in two ways, as messages to the
// kernel by an [Encoder] and as commands of nft by a [Text]. Their rules are made of matches and
// statements, each of which has its text and its expressions, so that the code reads as nft lists
// the ruleset:
//
//	c := p.Filter("filter-input", nft.HookInput, 0)
//	c.Add(nft.CTStateNew, key.In("services"), nft.Jump("no-endpoints"))
//
//	chain filter-input {
//		type filter hook input priority 0; policy accept;
//		ct state new ip daddr . meta l4proto . th dport @services jump no-endpoints
//	}
//
// The rules of the iptables backend are many, and have no such text. That backend encodes them with
// [Encoder.BeginRule], [AppendPayload] and their kin, which do not allocate.
//
// Numbers of attributes and of enums are those of include/uapi/linux/netfilter/nf_tables.h.
package nft
