//revive:disable:line-length-limit a rule cannot be wrapped

// Package nftables is the nftables backend of kernlb: it holds services in nf_tables over raw
// netlink. [New] opens it, and an engine writes to it:
//
//	backend, err := nftables.New(nil)
//	…
//	defer backend.Close()
//	result, err := dataplane.New(backend, nil).Apply(ctx, state)
//
// # The ruleset
//
// The ruleset is a fixed program, and services are only data. There is one table in each of the
// families ip and ip6 that services have addresses in, named after the instance ("kernlb"). Its
// chains and rules are the same whatever the services are; a service is elements in sets and maps,
// none of which carries a verdict. The kernel finds an element by hashing, and does not look at the
// ruleset again when one changes, so that a change costs the same among ten services and among
// fifty thousand. In short, for IPv4:
//
//	table ip kernlb {
//		set services { 10.96.0.10 . tcp . 80 comment "default/web:http cluster IP", … }
//		set service-size-3 { 10.96.0.10 . tcp . 80, … }
//		map service-endpoints { 10.96.0.10 . tcp . 80 . 0 : 10.244.1.7 . 8080, 10.96.0.10 . tcp . 80 . 1 : …, … }
//
//		chain nat-prerouting { type nat hook prerouting priority dstnat; jump dispatch; }
//		chain nat-output     { type nat hook output priority -100;       jump dispatch; }
//		chain dispatch {
//			ip daddr . meta l4proto . th dport @services goto services
//			meta l4proto . th dport @nodeports fib daddr type local ip daddr != 127.0.0.0/8 goto nodeports
//		}
//		chain services {
//			ip daddr . meta l4proto . th dport @service-masquerade-all meta mark set meta mark | 0x1000
//			…
//			goto service-balance
//		}
//		chain service-balance {
//			ip daddr . meta l4proto . th dport @service-size-3 dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @service-endpoints
//			…
//		}
//	}
//
// A frontend with n slots is in the set service-size-n, and its endpoints are in the map under its
// key and the numbers 0 to n-1. There is one rule for each number of slots in use. One endpoint
// more or less therefore changes the frontend's place in two sets and one or two slots, however
// many slots there are; a rule is added only for a number of slots that no service had before. An
// endpoint of weight w takes w slots.
//
// Node ports have sets and maps of their own, without the address. A frontend whose outside clients
// may use other endpoints than pods and the host (external traffic policy Local) is in
// service-split and has those endpoints in service-external-endpoints. Which frontends are
// rejected, dropped and masqueraded is membership of sets, too.
//
// Objects for two rare features exist only while some service uses them: session affinity (the maps
// affinity-0 to -15 and the sets service-affinity-T, one for each timeout T in use) and source
// ranges (the interval set sources).
//
// # Session affinity
//
// The affinity maps lead from client and frontend to the endpoint the client was given: one lookup,
// however many endpoints there are. A hash of the client's address tells which of the sixteen maps.
// They are written by rules after DNAT, from what conntrack knows of the flow: by its first packet
// only, for which an endpoint was just chosen. Each new connection renews the timeout. Affinity is
// kept for each address and port of a service, as IPVS keeps it.
//
// When an endpoint leaves, the transaction that takes it away marks the version with "affinity to
// be swept", and [Backend.Settle], which an engine calls after each commit, deletes the entries
// that lead to the endpoint: it waits until packets that were under way are through, reads the
// maps, deletes, and begins again until it finds none. Then the mark goes. From then on no new
// connection reaches the endpoint, and none can bring it back. A sweep that was interrupted is
// ended by whoever comes next. It takes 10 to 25 ms more than an apply without affinity, and some
// 100 ms for 60,000 clients.
//
// The maps hold 262,144 clients of each family, all services together (28 MB). An entry is made by
// one SYN or datagram, which may have a forged source: at 10,000 of these a second the maps are
// full after 26 s. Then clients that are remembered stay so, and further ones, of any service, are
// balanced and not remembered until entries expire. Where that matters, rate-limit new connections
// in front (a table with a lower priority), or shorten the timeouts.
//
// nft before 1.1 lists the rules for IPv6 affinity, but cannot load them from text: it aborts on a
// map update with a key or data over 16 bytes. On Linux 6.12 and newer stable kernels it cannot
// load source ranges either: it reverses the one byte of the protocol, which these kernels refuse.
//
// # Hooks
//
// All base chains have policy accept, and only drop or reject what is for a service: they live
// beside firewalls and network policies in other tables, and touch no other table. Connections that
// are not new are never looked at.
//
//	sources-prerouting, sources-output           filter, priority -110: source ranges, before DNAT
//	nat-prerouting, nat-output                   nat, priority -100: DNAT
//	learn-prerouting, learn-output               filter, priority -99: session affinity, after DNAT
//	neighbours-prerouting                        filter, priority -99: neighbours, after DNAT
//	filter-input, filter-forward, filter-output  filter, priority 0: reject and drop
//	nat-postrouting                              nat, priority 100: masquerade
//
// Masqueraded is what has the mark and, as conntrack knows, was sent to a frontend of the instance.
// So instances may have the same mark, and what other programs mark with the bit is left alone.
//
// # Loopback addresses
//
// With servicemodel.Node.LocalhostNodePorts, nat-output translates what this host sends to
// loopback addresses, and nat-prerouting nothing that is for one. The kernel routes that only with
// the sysctl net.ipv4.conf.all.route_localnet, which also lets others send to what listens at
// loopback addresses. So guard-loopback, which filter-input jumps to, drops what comes from
// elsewhere; the sysctl is turned on after the transaction that brings the rule, and becomes what
// it was before the one that takes it away. What it was is a setting. It stays on where another
// instance, kube-proxy, kubelet or the iptables backend has a guard of its own. Somebody who turns
// it off is repaired.
//
// # Owners
//
// Programs that share an instance, each with services of its own ([dataplane.Parts]), find what
// they hold by an index, and read nothing else: the map owner-frontends leads from an owner, which
// is a hash of its name, and a number to a frontend, and the set owner-hairpins says whose hairpins
// there are. A hairpin or cluster IP that several owners need has a comment such as "2 owners", and
// goes with the last of them. An engine that applies whole states leaves the index empty; the next
// program that changes a part reads everything, once, and makes it anew. The same goes for what is
// damaged: then all that is whole stays, whosever it is.
//
// # Transactions
//
// A change is one transaction; nothing is ever half written. (A load that is larger than what the
// socket can send at once, as in an unprivileged user namespace, comes in several, each of which
// leaves whole services.) Each transaction adds the next number to a set in the table of IPv4, such
// as "version-5f3a09c2". So the transaction of a program that does not know the last one fails as a
// whole; the program reads again, and begins again. After 127 transactions, one deletes the set and
// makes another with the next name. Commits of other programs do not matter. Programs that write to
// one instance take turns (flock on the network namespace, for ten seconds at most), so that none
// fails again and again.
//
// What somebody did by hand is noticed before the next change: where the generation of nf_tables is
// another than ours, tables, chains, rules and, on Linux 6.16 and newer, the numbers of elements
// are compared with what they should be; eight times at once, then once a second, or as often as
// takes a twentieth of the time.
//
// The package needs Linux 5.10 or newer with nf_tables, and works with nft 1.0.6 and newer, whose
// listing loads again. It never runs nft.
package nftables
