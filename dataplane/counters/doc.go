// Package counters counts the traffic of services: connections, packets and bytes, in both
// directions, of each frontend and endpoint. Counting can be switched on and off at any time; open
// connections continue. It complements the nftables and iptables backends, which do not count. Call
// [Open] and [Counters.Start]; [Counters.Read] returns the counts since then. The table in the
// kernel is:
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
// An element's key is the frontend (address, protocol, port) and the endpoint. Elements expire
// after a day. Each family has such a table, with chains that packets pass after the translation of
// destinations. Conntrack has the original destination of a packet and the endpoint that answers.
// So the rules of the backend do not change, and commits of services do not become slower.
// [Counters.Start] creates each table in one transaction, and [Counters.Stop] deletes both tables
// in one transaction.
//
// # What is counted
//
// The table counts every packet whose destination is translated, by any program; [Reading.Of]
// leaves out destinations that are not services. A packet is counted when it arrives, even if a
// firewall drops it afterwards. A connection is counted at its first packet, and again at each
// retry until conntrack has confirmed it. Packets that services reject or drop are not translated,
// and therefore not counted. Bytes include the IP headers. IPVS does not use this translation and
// has its own counters. A [Source] reads either kind.
//
// # Cost
//
// On a two-core machine with Linux 6.18 and 10,000 services on nftables, counting adds about 1 µs
// of processor time to the 12 µs of a packet from pod to pod, and 2.5 µs to the 16 µs of the first
// packet of a connection. Counting does not slow down applies. Reading 10,000 pairs takes 0.1 s
// ("kernlb show -counters" with 10,000 services takes 0.5 s), and 60,000 pairs take 1.5 s: the
// kernel walks the set from the start for each 32 KB of the dump (nft_rhash_walk).
//
// # After a flush
//
// A flush of the whole ruleset also removes the counters. An engine repairs the services, and an
// observer can start the counters again:
//
//	engine.Subscribe(func(ctx context.Context, ev dataplane.Event) {
//		if _, ok := ev.(dataplane.Repaired); ok {
//			err := counters.Start(ctx) // no change if they are on
//			…
//		}
//	})
//
// # Limits
//
// Each family counts 65,536 pairs of a frontend and an endpoint. Further pairs are not counted,
// which [Reading.Full] reports. A pair without packets for a day is forgotten, and starts from zero
// again. Its number of connections also starts from zero after a day without a new connection.
package counters
