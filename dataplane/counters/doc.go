// Package counters counts what services do: connections, packets and bytes, in both directions, of
// each frontend and endpoint. It can be switched on and off while connections go on, and works
// beside the nftables and the iptables backend, which count nothing by themselves. [Open] is first,
// then [Counters.Start]; [Counters.Read] says what was counted since. The table in the kernel is:
//
//	table ip kernlb-counters {
//		set connections {
//			type ipv4_addr . inet_proto . inet_service . ipv4_addr . inet_service
//			size 65536
//			flags dynamic,timeout
//		}
//		set requests { … }
//		set answers { … }
//		chain prerouting {
//			type filter hook prerouting priority -98
//			iifname != "lo" ct status dnat jump count
//		}
//		chain output {
//			type filter hook output priority -98
//			ct status dnat jump count
//		}
//		chain count {
//			ct direction original ct status ! confirmed update @connections { … counter }
//			ct direction original update @requests { … counter }
//			ct direction reply update @answers { … counter }
//		}
//	}
//
// An element is the frontend (address, protocol, port) and the endpoint, with a timeout of a day.
// The table is one of its own, in each family, behind the translation of destinations. What a
// packet was sent to, and what answers it, is known to conntrack, so the rules of the backend are
// neither changed nor asked, and commits of services do not become slower. It is made by
// [Counters.Start] and deleted by [Counters.Stop], in one transaction each.
//
// # What is counted
//
// Packets whose destination is translated, by whomever: [Reading.Of] leaves out what is no service.
// A packet counts where it comes in, also if a firewall drops it afterwards; a connection counts
// with its first packet, each time that this is tried until conntrack remembers it. What services
// reject or drop is not translated, and not counted. Bytes include the headers of IP. IPVS does not
// translate this way, and counts by itself: a [Source] is whatever was counted can be read from.
//
// # Cost
//
// Processor time on a two-core machine with Linux 6.18 and 10,000 services of nftables: some 1 µs
// for each packet of a connection, on top of 12 µs from a pod to a pod, and 2.5 µs for the first
// packet of a connection, on top of 16 µs. Applies take as long as without. Reading 10,000 pairs
// takes 0.1 s ("kernlb show -counters" of 10,000 services 0.5 s in all), and 60,000 take 1.5 s: the
// kernel walks a set anew for each 32 KB that it tells of (nft_rhash_walk).
//
// # Limits
//
// 65,536 pairs of a frontend and an endpoint are counted in each family. Further ones are not, and
// [Reading.Full] says so. A pair that has had no packets for a day is forgotten, and counts from
// zero again.
package counters
