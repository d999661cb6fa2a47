// Package iptables is the iptables backend of kernlb: it programs services as rules that
// iptables-save and iptables -L show, and that administrators know from kube-proxy. It never runs
// iptables: it writes the rules through nf_tables' netlink interface, with the expressions and the
// x_tables compatibility layer of iptables-nft, in one transaction.
//
// [New] opens the backend, and an engine uses it. By default, it takes over kube-proxy's chains;
// [Config.Prefix] selects other names:
//
//	backend, err := iptables.New(&iptables.Config{Prefix: "MYLB"})
//	…
//	defer backend.Close()
//	result, err := dataplane.New(backend, nil).Apply(ctx, state)
//
// # The ruleset
//
// Chains have the same names as in kube-proxy, and kube-proxy's bit of the mark requests
// masquerading. With a prefix other than KUBE, two instances can run side by side. Such an instance
// also uses a different bit (servicemodel.DefaultMasqueradeMark). For a service with a cluster IP,
// a node port, a load balancer's address and two endpoints, and pods in 10.244.0.0/16,
// iptables-save prints:
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
// Differences from kube-proxy:
//
//   - There is no chain for each endpoint: its rule is in the service's chain (KUBE-SVC-, or
//     KUBE-SVL- for the endpoints on this node). These rules are in the reverse order of their
//     slots. So adding an endpoint adds one rule in front, and replacing an endpoint changes one
//     rule. With affinity, the rules that look up clients come first, in kube-proxy's order.
//   - A rule in KUBE-HAIRPIN masquerades connections of an endpoint to itself. Only endpoints on
//     this node, or on an unknown node, have such a rule.
//   - Rules that reject or drop are in KUBE-SERVICES, KUBE-NODEPORTS and KUBE-PROXY-FIREWALL of the
//     table filter, for new connections only. As in kube-proxy's nftables mode, KUBE-CLUSTER-IPS
//     rejects packets to the other ports of cluster IPs, and drops packets to unused addresses of
//     the service ranges. Rules of TCP frontends without endpoints reset connections (--reject-with
//     tcp-reset): see servicemodel.Node.NoEndpoints.
//   - If a frontend does not balance a packet, nat accepts the packet: it does not reach the node
//     ports, even if the address is the node's.
//   - KUBE-FORWARD does not drop packets that conntrack considers invalid.
//   - KUBE-HEALTH-CHECKS of the table filter accepts packets to health check node ports. In
//     kube-proxy, this is the task of KUBE-NODEPORTS. INPUT jumps there for TCP, and only while a
//     service has such a port. Instances with other prefixes do the same: if a firewall dropped
//     these packets in INPUT, the load balancer would no longer use the node, whatever the names of
//     the chains.
//   - KUBE-SETTINGS, to which no rule jumps, stores the node-wide settings as comments, for people
//     and for the next process.
//
// # Many services
//
// A chain with more than 16 rules that send packets to services is split by address, and then by
// port:
//
//	-A KUBE-SERVICES -d 10.96.0.0/20 -j KUBE-IP-10.96.0.0/20
//	-A KUBE-IP-10.96.0.0/20 -d 10.96.0.0/26 -g KUBE-IP-10.96.0.0/26
//	-A KUBE-IP-10.96.0.0/26 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 … -j KUBE-SVC-CDGGSHYLG3RE2FKL
//	-A KUBE-NODEPORTS -p tcp -m tcp --dport 30720:30783 -j KUBE-NP-tcp-30720-30783
//
// With ten thousand services, the first packet of a connection passes some 30 short rules. Later
// packets pass none. The split depends only on the current services, not on their history. Adding
// or removing a service changes only the chains on the path to it.
//
// # Ranges of ports
//
// Ranges are in KUBE-RANGES, which exists only while a service has a range. Packets reach it last,
// after exact ports and node ports: KUBE-SERVICES jumps to it after the rule that kube-proxy's
// comment calls the last one.
//
//	-A KUBE-SERVICES -m comment --comment "ranges of ports" -j KUBE-RANGES
//	-A KUBE-RANGES -d 10.96.0.10/32 -p udp -m udp --dport 10000:20000 … -j KUBE-SVC-…
//	-A KUBE-SVC-… -p udp … -j DNAT --to-destination 10.244.1.1
//
// A target without a port keeps the port of the packet, and the target 10.244.1.1:9000-9099/8000
// maps the ports 8000 to 8099 to the ports 9000 to 9099. The chain is split by address and protocol
// only: the ranges of an address are tested in turn, narrower ranges first.
//
// # Schedulers
//
// The rule of a slot matches, according to its weight, a share of the packets that reach it: at
// random (statistic), in turn for rr (statistic, mode nth), or by a hash for sh. iptables has no
// match that hashes, so an xt_bpf program computes the hash of the client's address and, for
// sh+port, of its port. Each slot has its own seed. So a new endpoint gets its share of the
// clients, and no other clients move. If an endpoint is removed, the last endpoint gets its slot
// and its clients, and the last endpoint's former clients are spread over all other endpoints.
// Draining endpoints have no slot, so +fallback changes nothing.
//
// # Session affinity
//
// xt_recent remembers clients, in one list per endpoint. The list has the same name as in
// kube-proxy, and belongs to the whole service port: its cluster IP, node port and other addresses
// share it.
//
//	-A KUBE-SVC-… -p tcp -m recent --update --seconds 10800 --reap --name KUBE-SEP-… --rsource -j DNAT --to-destination 10.244.1.1:8080
//	-A KUBE-SVC-… -p tcp -m statistic … -m recent --set --name KUBE-SEP-… --rsource -j DNAT --to-destination 10.244.1.1:8080
//
// The module remembers 100 clients per endpoint, unless its parameter ip_list_tot is different. To
// find a list, it walks all lists: for each such rule that is added, and for each packet that such
// a rule tests.
//
// The rule that assigns an endpoint to a client also remembers the client, at the first packet of a
// connection only. An endpoint's rules and list are removed in the same transaction. So a packet in
// flight during the removal of an endpoint, such as a retransmitted SYN, leaves no entry, and an
// endpoint that comes back has no clients. SYNs with forged sources make a service forget its own
// clients beyond 100 per endpoint, but not the clients of other services.
//
// # When to choose iptables
//
// The nftables backend does the same by hashing, in microseconds, and without limits on affinity.
// In general, prefer it. The iptables backend is for nodes where people and tools look for services
// in iptables, and for taking over from kube-proxy in iptables mode without any client noticing. Do
// not use it with many services that have affinity.
//
// Processor time, in user space and in the kernel, on two cores at 2.5 GHz with Linux 6.18, for
// services with 10 endpoints each. The other columns are for iptables-restore 1.8.9 alone, with the
// rules of kube-proxy 1.36 for the same services. The time of kube-proxy itself is not included.
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
// The first packet of a UDP flow, from pod to pod, takes 4.1 µs without a service, 7.1 µs to a
// service among 10, and 9.5 µs among 10,000. If one service in ten has affinity, a packet to such a
// service with one endpoint takes 14 µs among 1,000 services and 114 µs among 10,000. Each
// additional endpoint adds to that.
//
// # Where the time is spent
//
// One change: nearly all of the time is spent in nft_table_validate. When a commit adds a rule with
// a verdict, a match or a target, the kernel walks all rules that can be reached in that table,
// once from PREROUTING and once from OUTPUT. The cost depends on the memory that it touches: the
// rule, and a separate descriptor for each x_tables match or target. Therefore, endpoints have no
// chains, comments are user data, rules use native expressions wherever iptables can read them, and
// the order of rules in memory is the order of the walk.
//
// A full sync: the kernel takes three fifths, 9 µs for each rule. Half of this time is spent on
// looking up the types of the rule's expressions by name; validation takes 3 %. Rules of endpoints
// without counters would save a tenth. One rule that masquerades all cluster IPs, instead of one
// rule for each, would save another twentieth. Both would hide information from administrators and
// save little.
//
// Adoption: the kernel takes half of the time, 5 µs for each rule that it sends. Decoding and
// comparing the rules take the other half. 10,000 services of 10 endpoints have 120,000 rules.
// Chains are read over one connection per processor. The contents of a rule cannot be read more
// cheaply.
//
// Affinity: when a rule with a list is added, recent_mt_check compares its name with the names of
// all lists, and an endpoint has two such rules. With 10,000 lists these comparisons take 6 s of
// the 8.2 s. With fewer lists, the rules could not determine the endpoint of a client. The kernel
// finds IP sets by number (10,000 are created in 1 s), but then the output of iptables-save could
// not be restored without ipset, and the clients that kube-proxy remembered would be forgotten.
//
// # Living with other programs
//
// All programs share the tables and base chains. The backend inserts its jumps at the beginning of
// base chains. It changes and removes only its own rules: the rules in chains with the names above,
// and the jumps to these chains in base chains. The backend treats kube-proxy's chains of the same
// names as its own: the first commit replaces their contents in one transaction, without breaking a
// connection or forgetting a client. The next observation finds all foreign changes to the
// backend's rules, and the next commit repairs them, rule by rule. Only the empty chains
// KUBE-PROXY-CANARY stay as kube-proxy made them, because kube-proxy uses them to detect flushes.
//
// Chains with a prefix other than KUBE belong to the instance only if an instance of kernlb created
// them: its settings, its version or another chain that only kernlb creates must exist. Otherwise,
// as with the prefix DOCKER next to Docker's DOCKER-FORWARD, they are not touched, and states are
// refused with a [backends.CollisionError] that names the chain. With [Config.TakeOver], such
// chains become part of the instance.
//
// KUBE-FIREWALL is shared with kube-proxy and the kubelet. In it, the guard of node ports at
// localhost is ours, and so are the jumps to the chain whose comment says so. Rules of other
// programs stay. A guard that existed before node ports answered at localhost also stays: the
// kubelet has the same rule there, and KUBE-SETTINGS records that it existed.
//
// The sysctl route_localnet is on as long as node ports answer at localhost. Before the backend
// changes the sysctl, the transaction that adds the guard writes the earlier value to
// KUBE-SETTINGS, so that any process can restore it. The backend restores the sysctl before it
// removes the guard. The recorded earlier value is 1 only if the sysctl was on without a guard. If
// it was on with a guard of kube-proxy or of another instance, it is turned off together with the
// last guard. So the sysctl is turned off in the end, unless an administrator had turned it on
// before, or another program has a guard: the same rule in a chain …-FIREWALL, or a chain
// guard-loopback of nf_tables. A log record names a guard of another program. A program that writes
// 1 while the value is already 1 leaves no trace, so the backend cannot know about it.
//
// The instance changes neither the policies of base chains nor the dormant flag of a table.
//
// # Back to kube-proxy
//
// If a kube-proxy in iptables mode starts after this program has ended, it rewrites the chains
// whose names both programs use. From then on these chains are kube-proxy's. Cleanup detects this
// by the chain KUBE-EXTERNAL-SERVICES: kube-proxy creates it first, and each commit of this backend
// removes it. The cleanup then removes the chains that kube-proxy does not use, and all rules that
// jump to them. The result is the same as if only kube-proxy had ever run. The guard of node ports
// at localhost stays, with its sysctl, because both programs need them.
//
// If a service is removed before kube-proxy has written anything, kube-proxy cannot delete the
// service's chain while KUBE-IP-… chains jump to it, and therefore cannot write anything. The
// cleanup then replaces the jumps to KUBE-IP-… with the rules of those chains: services keep
// working, and kube-proxy's next attempt succeeds. Until then, only packets with the mark are
// masqueraded.
//
// # Writers and neighbours
//
// An instance has a version: an empty chain such as KUBE-VERSION-1a2b3c4d in the table nat of IPv4,
// or of IPv6 if the node serves only IPv6. Each commit deletes this chain and creates a chain with
// a new random number, in the same transaction. If another writer still expects the old version,
// the kernel refuses its transaction, and the writer reads and tries again. Commits of other
// programs do not matter. If an administrator deletes the version by hand ("iptables -t nat -X"),
// the next apply gives the instance a new version. Writers take turns with a lock on the network
// namespace, but only for fairness.
//
// A reading does not require that other programs pause. Rules are read chain by chain. The reading
// of chains that only the instance uses is correct if the version is the same before and after. A
// chain that other programs also change is read again if it changed during the reading.
//
// As long as no program commits, an apply only requests the generation of the ruleset. After a
// foreign commit, it requests the version, and then checks for manual edits: it reads the fixed
// chains, and the numbers of rules and jumps that the kernel lists with each chain. So the next
// apply notices every added or removed rule. Such a check takes 0.5 ms, or 10 ms with 10,000
// services. If another program commits all the time, checks take a twentieth of the time. One kind
// of edit is noticed later: a replaced rule of a service (iptables -R). Only a reading of
// everything finds it, and such readings are limited to a hundredth of the time.
//
// If another program commits to the table nat or filter, the kernel validates that table. That
// program waits for the validation, and so does every other program that commits.
//
// Comments are written as user data of the rule. Both iptables and nft show user data as the
// comment, and packets do not have to pass a match. Rules that iptables itself wrote, for example
// after iptables-restore, are recognized as well.
//
// The package needs Linux 5.10 or newer with nft_compat and the matches and targets above, and
// works with iptables 1.8.9 (nf_tables) and newer.
package iptables

//revive:disable:line-length-limit a rule cannot be wrapped
