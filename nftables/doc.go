//revive:disable:line-length-limit a rule cannot be wrapped

// Package nftables is the nftables backend of kernlb: it programs services in nf_tables over raw
// netlink. [New] opens a backend, and an engine uses it:
//
//	backend, err := nftables.New(nil)
//	…
//	defer backend.Close()
//	result, err := dataplane.New(backend, nil).Apply(ctx, state)
//
// # The ruleset
//
// The ruleset is a fixed program, and services are data. There is one table, named after the
// instance ("kernlb"), in each of the families ip and ip6 in which a service or
// servicemodel.Node.ServiceCIDRs has an address. In a family without a table, kernlb registers no
// hooks and causes no connection tracking. The table of a family stays when its last service is
// removed, unless the node no longer serves that family (servicemodel.Node.OnlyFamily). An instance
// without services has the table ip, or the table of the only family that the node serves. The
// chains and rules of a table are the same for all services. A service consists of elements in sets
// and maps. Elements have no verdicts, unless the service has a scheduler. The kernel finds an
// element by hashing, and does not validate the ruleset again when an element changes. So a change
// costs the same whether there are ten services or fifty thousand. In short, the table for IPv4 is:
//
//	table ip kernlb {
//		set services { 10.96.0.10 . tcp . 80 comment "default/web:http cluster IP", … }
//		set service-over-2 { 10.96.0.10 . tcp . 80, … }
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
//			jump service-balance
//			jump service-balance
//			jump service-balance
//			goto service-any
//		}
//		chain service-balance {
//			ip daddr . meta l4proto . th dport @service-over-2 goto service-over-2
//			jump service-draw-2
//			jump service-draw-1
//			accept
//		}
//		chain service-over-2 {
//			ip daddr . meta l4proto . th dport @service-over-8 goto service-over-8
//			ip daddr . meta l4proto . th dport @service-over-4 goto service-over-4
//			jump service-draw-4
//			… (four times)
//		}
//		…
//		chain service-draw-4 {
//			dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 4 map @service-endpoints
//		}
//		…
//		chain service-any {
//			jump service-draw-128
//			jump service-draw-64
//			… (down to service-draw-1)
//		}
//	}
//
// The endpoints of a frontend with n slots are in the map under the frontend's key and the numbers
// 0 to n-1. The sets service-over-2, -over-4, -over-8 and so on show which powers of two n lies
// between. So adding or removing an endpoint changes one or two slots, whatever n is, and changes
// these sets only when n crosses a power of two. No rule and no set depends on n. An endpoint of
// weight w takes w slots.
//
// A packet draws a number below the smallest power of two that is at least n. If the number is n or
// more, the map has no element for it, so the rule does not match and the next rule draws again.
// All slots are equally likely. A packet makes at least twelve draws before a draw that cannot
// reach all slots: at most 2^-18 of a pool's packets come to such a draw. On average, a packet
// makes 1 to 2 draws.
//
// Each lookup sees the latest commit, and a commit may take place between two lookups of a packet.
// A packet that finds no slot goes through the chains again, and finally through service-any. That
// chain finds a slot in any pool that has slots; if it finds no other, it uses slot 0. If a commit
// adds the service or replaces the whole table between two lookups, the packet leaves these chains
// without an endpoint. The filter chains then drop the packet, so that its client sends it again.
// Otherwise, they would reject it, or accept it and let conntrack remember the untranslated flow.
// These chains make no lookups for translated packets.
//
// Node ports have their own sets and maps, whose keys have no address. With external traffic policy
// Local, the endpoints of a frontend for outside clients may differ from those for pods and the
// host. Such a frontend is in service-split, and the endpoints for its outside clients are in
// service-external-endpoints. Other sets list the frontends that are rejected, dropped and
// masqueraded.
//
// The objects of some features exist only while a service uses the feature: session affinity (the
// maps affinity-0 to -63 and the sets service-affinity-T, one for each timeout T in use), session
// affinity at node ports (the sets nodeport-affinity-T), source ranges (the interval set sources),
// frontends that are masqueraded except for pods (service-masquerade-not-pods), frontends that
// treat outside clients or this host differently (service-split, service-masquerade-host, and all
// sets with external in their names), and pools of more than 128 slots (the sets service-over-128
// and higher).
//
// # Schedulers
//
// A pool with a scheduler other than random has its slots in a separate map, such as
// service-mh-endpoints, and its frontends are in none of the sets service-over-N. Packets to such a
// frontend find no slot in service-endpoints. The map service-scheduled then sends them to a chain:
//
//	map service-scheduled { 10.96.0.11 . tcp . 80 : goto service-mh-1021, 10.96.0.12 . tcp . 80 : goto service-rr-3-744, … }
//	chain service-balance {
//		… (as above)
//		jump service-draw-1
//		ip daddr . meta l4proto . th dport vmap @service-scheduled
//		jump service-draw-1
//		accept
//	}
//	chain service-mh-1021 { dnat ip to ip daddr . meta l4proto . th dport . jhash ip saddr mod 1021 seed 0x6b6c6d68 map @service-mh-endpoints }
//	chain service-rr-3-744 { dnat ip to ip daddr . meta l4proto . th dport . numgen inc mod 3 map @service-rr-endpoints }
//	chain service-sh-4 { jump service-sh-level-2; jump service-sh-level-1; dnat ip to … numgen random mod 1 map @service-sh-endpoints }
//	chain service-sh-level-2 { jhash ip saddr mod 2 seed 0x6b6c0200 0 return; dnat ip to … jhash ip saddr mod 4 seed 0x6b6c0200 map @service-sh-endpoints; … (eight times) }
//
// Packets to other services find a slot before that lookup, so schedulers do not slow them down.
// Package servicemodel computes the Maglev tables. The comments of their elements contain the slots
// and weights of endpoints.
//
// # Session affinity
//
// The affinity maps store the endpoint of each remembered client of a frontend. Finding this
// endpoint takes one lookup, whatever the number of endpoints. A hash of the client's address
// selects one of 64 maps. For a packet to a service without affinity, the cost is one lookup in a
// set for each timeout in use, and no lookup in the maps. Rules after DNAT fill the maps from
// conntrack's entry for the flow. They do so only for the first packet of a flow, because only this
// packet was just assigned an endpoint. Each new connection renews the timeout. Each address and
// port of a service has its own affinity, as in IPVS.
//
// When an endpoint is removed, the same transaction marks the version with "affinity to be swept".
// After each commit an engine calls Settle, which deletes the entries that refer to the endpoint.
// Settle waits until packets in flight have passed, reads the maps, deletes entries, and repeats
// this until it finds none. Then it removes the mark. From then on, no new connection reaches the
// endpoint, and no packet can create such an entry again. If a sweep was interrupted, the next
// program finishes it. A sweep waits 10 to 25 ms for packets, and takes some 100 ms more with
// 60,000 clients. Engine.Apply waits for the sweep. Engine.Run commits other changes during the
// wait and between reading one map and the next, and one sweep covers all these changes.
//
// The maps of a family can store 262,144 clients of all services together (28 MB). One SYN or
// datagram creates an entry, and its source may be forged: at 10,000 such packets a second the maps
// are full after 26 s. Clients that are already remembered are not affected. Other clients, of any
// service, are balanced but not remembered until entries expire. If that is a problem, rate-limit
// new connections earlier (in a table with a lower priority), or shorten the timeouts.
//
// nft before 1.1 lists the rules for IPv6 affinity, but cannot load them from text: it aborts on a
// map update with a key or data over 16 bytes. On Linux 6.12 and newer stable kernels, such an nft
// cannot load source ranges either, because it encodes the one-byte protocol in the wrong byte
// order.
//
// # Hooks
//
// All base chains have policy accept, and drop or reject packets to services only. They coexist
// with firewalls and network policies in other tables, and the backend does not touch other tables.
// The chains ignore packets of connections that are not new.
//
//	sources-prerouting, sources-output           filter, priority -110: source ranges, before DNAT
//	nat-prerouting, nat-output                   nat, priority -100: DNAT
//	neighbours-prerouting                        filter, priority -99: neighbours, after DNAT
//	filter-input, filter-forward, filter-output  filter, priority 0: reject and drop, and learn
//	                                             session affinity
//	nat-postrouting                              nat, priority 100: masquerade
//
// [Config.Priorities] moves three of these groups of chains. [Config.BeforeDispatch] and
// [Config.BeforeMasquerade] name chains for user-defined rules.
//
// A packet is masqueraded if it has the mark and, according to conntrack, its flow was sent to a
// frontend of this instance. So several instances may use the same mark, and packets that other
// programs mark with this bit are not affected. If a service sets the source of its masqueraded
// connections (servicemodel.Service.MasqueradeIPs), the maps service-masquerade-ips,
// nodeport-masquerade-ips and range-masquerade-ips contain that source, and other connections cost
// one more lookup.
//
// Clients of frontends without endpoints get a TCP reset or ICMP port unreachable, and packets from
// forbidden sources are dropped. servicemodel.Node.NoEndpoints and Forbidden select other answers.
// If a frontend becomes restricted after a packet has passed the chains of source ranges, the
// packet is dropped in any case.
//
// # Loopback addresses
//
// With servicemodel.Node.LocalhostNodePorts, nat-output translates packets that this host sends to
// loopback addresses. nat-prerouting never translates packets whose destination is a loopback
// address. The kernel routes such packets only with the sysctl net.ipv4.conf.all.route_localnet,
// which also lets other hosts send to programs that listen on loopback addresses. So filter-input
// jumps to the chain guard-loopback, which drops such packets from other hosts. The backend turns
// the sysctl on after the transaction that adds the guard, and restores it before the transaction
// that removes the guard. A setting in the table records the value to be restored. The sysctl stays
// on if another instance, kube-proxy, the kubelet or the iptables backend has its own guard; a log
// record then says so. The last instance restores the value that was set before the first instance.
// If another program turns the sysctl off, the next apply turns it on again.
//
// # Owners
//
// Programs can share an instance, each with its own services ([dataplane.Parts]). They find their
// objects through an index, and read nothing else. The map owner-frontends lists the frontends of
// each owner, by the hash of the owner's name and a number. The set owner-hairpins lists the owners
// of each hairpin. A hairpin or cluster IP of several owners has a comment such as "2 owners", and
// is removed together with its last owner's part. An engine that applies whole states leaves the
// index empty. The next program that changes a part then reads everything once, and rebuilds the
// index. If the tables are damaged, it does the same, and keeps every intact object of all owners.
//
// # Transactions
//
// A change is one transaction, so nothing is ever half written, with two exceptions. A change that
// is too large to be sent through the socket at once, as in an unprivileged user namespace, takes
// several transactions; each service is in one of them. A large new instance takes many short
// transactions, so that other programs can commit in between; the last transaction creates the base
// chains, and packets enter only after that.
//
// Each transaction adds the next number to a set in one of the tables, such as "version-5f3a09c2".
// So if a program does not know the last number, its transaction fails as a whole. The program then
// reads again, and starts over. After 127 numbers, a transaction replaces the set with a set that
// has the next name. Commits to other tables do not matter. Programs that write to one instance
// take turns, so that no program fails repeatedly: they lock the network namespace with flock, and
// wait at most ten seconds for the program that has the lock.
//
// A cleanup takes two transactions: the first deletes the chains filter-input, filter-forward and
// filter-output, the second deletes both tables. When the kernel deletes a table, the maps are
// empty at once, but the chains leave their hooks one by one. Without the first transaction, the
// filter chains would drop packets that are no longer translated.
//
// The backend notices manual edits before the next change. If another program has committed to
// nf_tables since the last check, the backend compares tables, chains, rules and, on Linux 6.16 and
// newer, the numbers of elements with the expected ones. It makes up to eight such checks without a
// pause, and then at most one per second. If checks take long, they are limited to a twentieth of
// the time.
//
// # The code
//
// This package contains the configuration, the sockets, and the order of steps in a commit
// (commit_linux.go), an observation (observe_linux.go) and a check (integrity_linux.go). It has
// three internal packages:
//
//   - form: the representation of an instance in nf_tables. It encodes and decodes sets, chains,
//     rules, elements.
//   - plan: the messages for a change set.
//   - read: the contents of the kernel, and their meaning in the model. Packages plan and read do
//     not import each other.
//
// A rare feature has its own files in each package: affinity, owners, schedulers, other layouts. No
// two files use each other, not even indirectly. A test checks this, so a reader can start with a
// file that uses no other file.
//
// The package needs Linux 5.10 or newer with nf_tables, and works with nft 1.0.6 and newer, which
// can reload its own listing. It never runs nft.
package nftables
