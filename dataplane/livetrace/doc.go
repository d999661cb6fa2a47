// Package livetrace traces a real packet through the kernel. It shows which rules of kernlb and
// other programs the packet matched, where it was dropped, refused, delivered or sent on, and the
// answer. [Open] starts to watch for packets, and [Tracer.Next] waits for one; [Send] sends a
// packet from this node, and traces it.
//
// It uses the tracing of nf_tables, like "nft monitor trace". So it sees the rules of every
// nf_tables table from prerouting and output on, including those of iptables-nft, with any backend.
// It does not see BPF programs, IPVS, and the tables of iptables-legacy, whose TRACE target it does
// not use. If one of these handles a packet, the trace names the hook where this happened.
//
//	prerouting   ip kernlb nat-prerouting, handle 61: jump dispatch
//	             …
//	             it now goes to 10.244.1.2:8080
//	forward      inet firewall forward, handle 5 ("no web"): tcp dport 8080 drop
//	outcome      dropped by inet firewall forward, handle 5 ("no web")
//
// # How
//
// A [Tracer] creates its own table in the family of the packet. In each hook, the table has a first
// and a last chain, which show that a packet entered and left the hook. So a packet that did not
// reach the last chain was lost in that hook, even if no nf_tables rule shows it. The first chains
// of prerouting and output enable tracing for packets that match [Filter], at most five per second;
// other packets cost a few comparisons. The tracer recognises answers by their conntrack entry, and
// traces them, too.
//
// The table belongs to the tracer's socket (NFT_TABLE_F_OWNER). The kernel removes it when the
// process ends, even if the process is killed, and no other program can change it. Linux 5.10 and
// 5.11 do not support this. There, the table has a fixed name, only one tracer can work at a time,
// and the next tracer replaces a table that a killed process left.
package livetrace
