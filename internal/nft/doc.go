// Package nft holds what the tables of the nftables and the ipvs backend are made of: families,
// sets with their elements, chains, and rules with their expressions. Each is written in two ways,
// as a message to the kernel by an [Encoder] and as a command of nft by a [Text]. Which tables
// there are, and what is in them, is the business of the backends.
//
// Numbers of attributes and of enums are those of include/uapi/linux/netfilter/nf_tables.h.
package nft
