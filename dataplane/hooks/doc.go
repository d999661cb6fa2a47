// Package hooks tells which chains of nf_tables packets pass in a network namespace, those of
// kernlb and those of other programs, and which of their rules drop packets. It reads, and changes
// nothing: [Open], then [Reader.Read]. Package servicemodel/graph draws what it reads.
//
// Chains of iptables are among them where iptables is the variant that works on nf_tables, which
// is the default of all distributions today (iptables -V says "nf_tables"). Those of the older
// variant, and hooks of other parts of the kernel such as IPVS, are not. Nor are chains of the
// families bridge, arp and netdev.
package hooks
