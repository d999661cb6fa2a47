// Package hooks lists the nf_tables chains that packets pass in a network namespace, and the rules
// in them that drop packets. It lists the chains of kernlb and of other programs, and changes
// nothing. Call [Read]. Package dataplane/graph draws the result.
//
// It lists chains of iptables-nft, today's default in all distributions (iptables -V says
// "nf_tables"). It does not list chains of iptables-legacy, hooks of other kernel subsystems such
// as IPVS, and chains of the families bridge, arp and netdev.
package hooks
