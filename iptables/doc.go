//revive:disable:line-length-limit a rule cannot be wrapped

// Package iptables is the iptables backend of kernlb: it holds services as rules that iptables-save
// and iptables -L show, and that administrators know from kube-proxy. It never runs iptables: the
// rules are written through nf_tables' netlink interface, with the expressions and the x_tables
// compatibility of iptables-nft, in one transaction.
//
// [New] opens it, and an engine writes to it. The default is the chains of kube-proxy, which it
// takes over; [Config.Prefix] names others:
//
//	backend, err := iptables.New(&iptables.Config{Prefix: "MYLB"})
//	…
//	defer backend.Close()
//	result, err := dataplane.New(backend, nil).Apply(ctx, state)
//
// # The ruleset
//
// Chains are named as kube-proxy names them, and its bit of the mark asks for masquerading; the
// prefix KUBE can be another, so that two instances exist side by side. Then the bit is another,
// too (servicemodel.DefaultMasqueradeMark). For one service with a cluster IP, a node port and a
// load balancer's address, two endpoints, and pods in 10.244.0.0/16, iptables-save prints:
//
//	*nat
//	-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
//	-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
//	-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
//	-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 … "default/web:http cluster IP" -j KUBE-SVC-CDGGSHYLG3RE2FKL
//	-A KUBE-SERVICES -d 203.0.113.8/32 -p tcp -m tcp --dport 80 … "default/web:http loadbalancer IP" -j KUBE-EXT-CDGGSHYLG3RE2FKL
//	-A KUBE-SERVICES -m addrtype --dst-type LOCAL -m comment --comment "…" -j KUBE-NODEPORTS
//	-A KUBE-NODEPORTS -d 127.0.0.0/8 -j RETURN
//	-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -m comment --comment "default/web:http node port" -j KUBE-EXT-CDGGSHYLG3RE2FKL
//	-A KUBE-EXT-CDGGSHYLG3RE2FKL -m comment --comment "masquerade traffic for …" -j KUBE-MARK-MASQ
//	-A KUBE-EXT-CDGGSHYLG3RE2FKL -g KUBE-SVC-CDGGSHYLG3RE2FKL
//	-A KUBE-SVC-CDGGSHYLG3RE2FKL -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -m comment --comment "…" -j KUBE-MASQ-OFF-POD
//	-A KUBE-SVC-CDGGSHYLG3RE2FKL -p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.244.1.2:8080
//	-A KUBE-SVC-CDGGSHYLG3RE2FKL -p tcp -m comment --comment "default/web:http" -j DNAT --to-destination 10.244.1.1:8080
//	-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
//	-A KUBE-MASQ-OFF-POD -s 10.244.0.0/16 -j RETURN
//	-A KUBE-MASQ-OFF-POD -j MARK --set-xmark 0x4000/0x4000
//	-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -m conntrack --ctstate DNAT -j KUBE-HAIRPIN
//	-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
//	-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
//	-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
//	-A KUBE-HAIRPIN -s 10.244.1.1/32 -d 10.244.1.1/32 -j MASQUERADE --random-fully
//	*filter
//	-A INPUT -m conntrack --ctstate NEW … -j KUBE-SERVICES
//	-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
//	-A FORWARD -m conntrack --ctstate NEW … -j KUBE-CLUSTER-IPS
//	-A OUTPUT -m conntrack --ctstate NEW … -j KUBE-CLUSTER-IPS
//	-A KUBE-CLUSTER-IPS -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
//	-A KUBE-CLUSTER-IPS -d 10.96.0.10/32 -j REJECT --reject-with icmp-port-unreachable
//	-A KUBE-CLUSTER-IPS -d 10.96.0.0/12 -m comment --comment "unused address of the service range" -j DROP
//	-A KUBE-SERVICES -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
//	-A KUBE-SERVICES -m addrtype --dst-type LOCAL -m comment --comment "…" -j KUBE-NODEPORTS
//	-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -m comment --comment "kubernetes forwarding rules" -j ACCEPT
//	-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "…" -j ACCEPT
//
// What differs from kube-proxy:
//
//   - There is no chain for each endpoint: its rule is in the chain of the service (KUBE-SVC-, or
//     KUBE-SVL- for the endpoints on this node). They stand in reverse order of their slots, so
//     that one more is one rule in front, and one replaced is one rule. With affinity, the rules
//     that look for a client come before them, in kube-proxy's order.
//   - An endpoint that reaches itself is masqueraded by a rule in KUBE-HAIRPIN; only endpoints on
//     this node, or on an unknown one, have that.
//   - What must be rejected or dropped is in KUBE-SERVICES, KUBE-NODEPORTS and KUBE-PROXY-FIREWALL
//     of the table filter, for new connections only. The other ports of cluster IPs are rejected
//     and unused addresses of the service ranges dropped in KUBE-CLUSTER-IPS, as in kube-proxy's
//     nftables mode.
//   - A frontend that is not balanced, or not for this packet, is accepted in nat: it is not a node
//     port, even if its address is the node's.
//   - KUBE-FORWARD does not drop packets that conntrack calls invalid.
//   - KUBE-SETTINGS, which nothing jumps to, holds the node-wide settings as comments, for people
//     and for the next process.
//
// # Many services
//
// With more than 16 rules, a chain that leads packets to services is divided by address, then by
// port:
//
//	-A KUBE-SERVICES -d 10.96.0.0/20 -j KUBE-IP-10.96.0.0/20
//	-A KUBE-IP-10.96.0.0/20 -d 10.96.0.0/26 -g KUBE-IP-10.96.0.0/26
//	-A KUBE-IP-10.96.0.0/26 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 … -j KUBE-SVC-CDGGSHYLG3RE2FKL
//	-A KUBE-NODEPORTS -p tcp -m tcp --dport 30720:30783 -j KUBE-NP-tcp-30720-30783
//
// The first packet of a connection passes some 30 short rules among ten thousand services, the
// others none. The parts depend on what there is only, not on how it came about; a service that
// comes or goes changes the chains on its way.
//
// # Session affinity
//
// Clients are remembered by xt_recent, in a list for each endpoint under the name that kube-proxy
// gives it, for the whole service port: its cluster IP, node port and other addresses share it.
//
//	-A KUBE-SVC-… -p tcp -m recent --update --seconds 10800 --reap --name KUBE-SEP-… --rsource -j DNAT --to-destination 10.244.1.1:8080
//	-A KUBE-SVC-… -p tcp -m statistic … -m recent --set --name KUBE-SEP-… --rsource -j DNAT --to-destination 10.244.1.1:8080
//
// The module remembers 100 clients for each endpoint unless its parameter ip_list_tot says
// otherwise, and finds a list by walking all that there are, for each such rule that is added and
// for each such match of a packet.
//
// A client is remembered by the rule that gives it an endpoint, with the first packet of a
// connection only, and an endpoint's rules and list go with it in one transaction: what is on
// its way when an endpoint leaves, such as a SYN that is sent again, remembers nothing. An
// endpoint that comes back knows nobody. SYNs with forged sources make a service forget its own
// clients, beyond 100 for each endpoint, and those of no other.
//
// # When to choose iptables
//
// The nftables backend does the same by hashing, in microseconds, and without limits to affinity:
// it is the one to choose. This one is for nodes where people and tools look for services in
// iptables, and for taking over from kube-proxy in iptables mode without a client noticing. Many
// services with affinity are a reason against it.
//
// Processor time, in user space and in the kernel, on two cores at 2.5 GHz with Linux 6.18,
// services of 10 endpoints. Beside it that of iptables-restore 1.8.9 alone, given the rules that
// kube-proxy 1.36 has for the same services; what kube-proxy does itself comes on top.
//
//	                                           kernlb   iptables-legacy   iptables-nft
//	full sync of 1,000 services                0.23 s            0.47 s          8.0 s
//	full sync of 10,000                         2.2 s              12 s
//	full sync of 10,000, 1 in 10 with affinity  8.2 s              18 s
//	one endpoint of 1,000 replaced            0.006 s
//	one endpoint of 10,000                     0.05 s             1.6 s
//	one endpoint of 10,000, 1 in 10 affinity   0.05 s              14 s
//	a new process adopts 10,000                 1.2 s
//
// The first packet of a UDP flow, from pod to pod, takes 4.1 µs without a service, 7.1 µs to one
// among 10, and 9.5 µs among 10,000. Where one service in ten has affinity, and the one asked for
// too, it takes 14 µs among 1,000 and 114 µs among 10,000 for one endpoint, and more for each
// further.
//
// # Where the time goes
//
// One change: nearly all is nft_table_validate. At a commit that adds a rule with a verdict, a
// match or a target, the kernel walks all that can be reached in that table, once from PREROUTING
// and once from OUTPUT. What it costs is the memory it touches: the rule, and for each match or
// target of x_tables a descriptor of its own. Therefore there is no chain for each endpoint,
// comments are user data, whatever iptables reads from native expressions is written as such, and
// rules lie in memory in the order in which they are walked.
//
// A full sync: three fifths are the kernel's, 9 µs for each rule, of which half goes into finding
// the types of its expressions by their names; validation is 3 %. Rules of endpoints without
// counters would take a tenth less, masquerading cluster IPs by one rule rather than one each
// another twentieth: neither is worth what it hides.
//
// Adoption: half is the kernel's, 5 µs for each rule that it tells; the other half goes into
// decoding and comparing them. Chains are read over as many connections as there are processors,
// for 10,000 services of 10 endpoints 120,000 rules. Nothing but reading a rule tells what is in
// it.
//
// Affinity: to add a rule with a list, recent_mt_check compares its name with those of all lists,
// and there are two such rules for an endpoint. With 10,000 lists these comparisons take 6 s of the
// 8.2. Fewer lists cannot say which endpoint a client was given. IP sets would be found by number
// (10,000 are made in 1 s), but then what iptables-save prints could not be restored without ipset,
// and clients that kube-proxy knew would be forgotten.
//
// # Living with others
//
// The tables and base chains are everybody's. The backend inserts its jumps at their beginning, and
// changes and removes no rule but its own: those in chains of the names above, and jumps to these
// in base chains. Chains of kube-proxy under the same names count as its own: the first commit
// replaces what is in them, in one transaction, without breaking a connection or forgetting a
// client. Whatever somebody else does to its rules, the next observation finds, and the next commit
// repairs, rule by rule. Of what kube-proxy had, the chains KUBE-PROXY-CANARY stay, which are
// empty, and by which it notices flushes.
//
// KUBE-FIREWALL is shared with kube-proxy and kubelet. Ours in it is the guard of node ports at
// localhost, and the jumps to it that say so in their comment. What others have there stays.
//
// The sysctl route_localnet is on as long as node ports answer at localhost. What it was before
// is written in KUBE-SETTINGS by the transaction that brings the guard, before the sysctl is
// touched, so that any process can restore it; and it is restored before the guard goes. It
// counts as on only if it was on without a guard: one that comes with a guard, of kube-proxy or
// of another instance, goes with the last guard. So it is turned off at the end unless an
// administrator had turned it on before, or somebody else's chain …-FIREWALL has a guard. Who
// writes 1 while it is 1 leaves no trace: that is undone.
//
// The policies of base chains, and whether a table is dormant, are not the instance's: they stay
// as somebody set them.
//
// # Back to kube-proxy
//
// A kube-proxy in iptables mode that begins when this program has ended writes those chains anew
// whose names both have: they are its own then. [Backend.Cleanup] knows that it has begun by the
// chain KUBE-EXTERNAL-SERVICES, which kube-proxy makes first, and which each commit removes. It then
// takes away the chains that kube-proxy does not have, and all rules that lead there. What is left
// is what kube-proxy alone would have made. The guard of node ports at localhost stays, with its
// sysctl: both want them.
//
// Where a service went before kube-proxy has written anything, it cannot delete its chain, and so
// write nothing, while KUBE-IP-… lead there. Then the cleanup puts the rules of those chains where
// they were led to: services stay, and kube-proxy can write when it tries again. Until it does,
// nothing is masqueraded but what has the mark.
//
// # Writers and neighbours
//
// An instance has a version, an empty chain of table nat of IPv4 such as KUBE-VERSION-1a2b3c4d.
// Each commit deletes it and makes another with a number drawn at random, in the same
// transaction. Another writer that knew the first is refused by the kernel, and reads and tries
// again; what other programs commit does not matter. Whoever deletes the version by hand
// ("iptables -t nat -X") makes the next apply give the instance another. Writers take turns by a
// lock on the network namespace, for fairness only.
//
// Reading needs no quiet kernel. Rules are read chain by chain, and what was read of chains that
// are only the instance's is right if the version is the same before and after; shared chains
// are read again if they changed meanwhile.
//
// As long as nobody commits, an apply asks for the generation of the ruleset and nothing else.
// If somebody did, it asks for the version, and then looks for what people do by hand: at the
// fixed chains, and at the numbers of rules and jumps that the kernel lists with each chain, so
// that whatever comes or goes is noticed by the next apply. Such a look takes 0.5 ms, and 10 ms
// among 10,000 services; beside a neighbour that commits without end, looks take a twentieth of
// the time. Only a rule of a service that was replaced by hand (iptables -R) is found later:
// when everything is read, at most each hundredth of the time.
//
// A neighbour that commits to table nat or filter itself costs what the kernel takes to validate
// that table, for itself and for whoever waits for it.
//
// Comments are written as user data of the rule, where both iptables and nft show them, rather than
// as a match that every packet would pass. Rules written by iptables itself, such as after
// iptables-restore, are recognised all the same.
//
// The package needs Linux 5.10 or newer with nft_compat and the matches and targets above, and
// works with iptables 1.8.9 (nf_tables) and newer.
package iptables
