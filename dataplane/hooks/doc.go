// Package hooks lists the chains of nf_tables that packets pass in a network namespace, and their
// rules that drop packets. It lists the chains of kernlb and of other programs, and changes
// nothing. Call [Read]. Package dataplane/graph draws the result.
//
// It lists chains of iptables-nft, the default of all distributions today (iptables -V says
// "nf_tables"). It does not list chains of iptables-legacy, hooks of other parts of the kernel such
// as IPVS, and chains of the families bridge, arp and netdev.
package hooks
