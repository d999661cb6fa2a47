// Package livetrace follows a real packet through the kernel: it says at which rules it went, those
// of kernlb and those of any other program, and where it was dropped, refused, delivered or sent
// on, and what answered. [Open] begins to watch for packets, and [Tracer.Next] waits for one;
// [Send] sends one from this node, and follows it.
//
// It uses the trace of nf_tables, which "nft monitor trace" shows, too. So it sees the rules of
// every table of nf_tables from prerouting and output on, those of iptables-nft included, whatever
// the backend is. It does not see the tables of iptables-legacy, whose TRACE target is not used,
// programs of BPF, and IPVS: where one of these takes a packet, a trace says in which hook.
//
//	prerouting   ip kernlb nat-prerouting, rule 61: jump dispatch
//	             …
//	             it now goes to 10.244.1.2:8080
//	forward      inet firewall forward, rule 5 ("no web"): tcp dport 8080 drop
//	outcome      dropped by inet firewall forward, rule 5 ("no web")
//
// # How
//
// A [Tracer] makes a table of its own, of the packet's family. In each hook it has a first and a
// last chain, which tell where a packet came in and that it came through; so what is lost between
// them is lost in that hook, also where nothing of nf_tables says so. The first chains of
// prerouting and output turn on the trace of packets that match [Filter], five a second at most;
// other packets cost a few comparisons. Answers are told by conntrack, and traced, too.
//
// The table belongs to the tracer's socket (NFT_TABLE_F_OWNER): the kernel removes it when the
// process ends, however that happens, and nobody else can change it. Linux 5.10 and 5.11 have no
// such tables. There its name is always the same, one tracer works at a time, and a table that a
// killed process has left is replaced by the next.
package livetrace
