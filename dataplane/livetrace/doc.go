// Package livetrace follows a real packet through the kernel. It shows the rules that the packet
// matched, of kernlb and of any other program, where the packet was dropped, refused, delivered or
// sent on, and the answer. [Open] begins to watch for packets, and [Tracer.Next] waits for one;
// [Send] sends a packet from this node, and follows it.
//
// It uses the trace of nf_tables, as "nft monitor trace" does. So it sees the rules of every table
// of nf_tables from prerouting and output on, including iptables-nft's, with any backend. It does
// not see the tables of iptables-legacy, whose TRACE target it does not use, programs of BPF, and
// IPVS. If one of these handles a packet, the trace names the hook in which it happened.
//
//	prerouting   ip kernlb nat-prerouting, handle 61: jump dispatch
//	             …
//	             it now goes to 10.244.1.2:8080
//	forward      inet firewall forward, handle 5 ("no web"): tcp dport 8080 drop
//	outcome      dropped by inet firewall forward, handle 5 ("no web")
//
// # How
//
// A [Tracer] creates a table of its own, of the packet's family. In each hook the table has a first
// and a last chain, which show that a packet came in and that it came through. So a packet that is
// lost between them was lost in that hook, even if no rule of nf_tables shows it. The first chains
// of prerouting and output turn on the trace of packets that match [Filter], five a second at most;
// other packets cost a few comparisons. The tracer recognises answers by conntrack, and traces
// them, too.
//
// The table belongs to the tracer's socket (NFT_TABLE_F_OWNER). The kernel removes it when the
// process ends, even if it is killed, and no other program can change it. Linux 5.10 and 5.11 have
// no such tables. There its name is always the same, one tracer works at a time, and the next
// tracer replaces a table that a killed process has left.
package livetrace
