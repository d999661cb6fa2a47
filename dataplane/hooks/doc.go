// Package hooks lists the chains of nf_tables that packets pass in a network namespace, of kernlb
// and of other programs, and their rules that drop packets. It changes nothing. Call [Read].
// Package dataplane/graph draws the result.
//
// It lists chains of iptables if iptables is the variant on nf_tables, the default of all
// distributions today (iptables -V says "nf_tables"). It does not list chains of the older variant,
// hooks of other parts of the kernel such as IPVS, and chains of the families bridge, arp and
// netdev.
package hooks
