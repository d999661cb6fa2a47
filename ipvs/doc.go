// Package ipvs is the IPVS backend of kernlb: it holds services as virtual servers over generic
// netlink, with a small companion table of nf_tables beside them. It runs no command-line tool, and
// needs Linux 5.10 or newer with IPVS and nf_tables. [New] opens it, and an engine writes to it:
//
//	backend, err := ipvs.New(nil)
//	…
//	defer backend.Close()
//	result, err := dataplane.New(backend, nil).Apply(ctx, state)
//
// # Objects
//
//   - A virtual server for each frontend, at its address and port; for a node port, one at each
//     address of the node that takes node ports. It exists also while the frontend rejects or
//     drops, so that connections which drain go on.
//   - A virtual server by firewall mark for each frontend where pods and the host have other
//     endpoints than clients outside (external traffic policy Local). The marks are 0xc0000000
//     and a number: 262,143 for each instance, from one that is made of its name on.
//   - The tables ip and ip6 named [Config.Table], the companion. Its chains are fixed; a frontend
//     is elements of sets.
//   - A rule and a local route in each family, which deliver packets with the mark 0x40000000 to
//     this machine: no address of a service is bound to any device, so that other ports of external
//     addresses are not touched, nobody answers ARP for them, and the host keeps its source
//     address.
//   - If [Config.Device] names one, a dummy device that holds the addresses of services.
//
// # The device
//
// BGP speakers, ping and programs that list addresses look for the addresses of services on the
// node, as they are on kube-proxy's kube-ipvs0. With [Config.Device] set, cluster IPs, external IPs
// and load-balancer IPs are bound there, as /32 and /128, while a frontend is at the address; an
// address that somebody has bound to any device is left to them. Services work the same way with it
// and without, apart from this:
//
//   - Other ports of the addresses are the host's own: what listens on all addresses is reached
//     there, and what nobody listens on is refused by the host. Without a device, other ports of
//     cluster IPs are rejected, and those of other addresses are not touched.
//   - The node answers ARP for the addresses on all links, unless [Config.StrictARP] is set. It
//     never answers neighbour solicitations for them: IPv6 asks the link.
//   - What the host sends to a service it sends from the service's address, and it is always
//     masqueraded. What it sends elsewhere has no address of a service: those of IPv4 have the
//     scope of the host, those of IPv6 are deprecated.
//   - With direct routing and tunnels, the host and what has the node as its gateway get no
//     answers: these come from an address that the node takes for its own.
//   - The kernel compares a new IPv4 address with all others of the device: the first sync of 5,000
//     takes 0.7 s more.
//
// So the conformance suite is not promised with a device: where it fails is other ports, and the
// host's source address.
//
// Bound addresses take no node ports. IPv6 addresses are usable at once, without duplicate address
// detection.
//
// # Hooks
//
//	sent-output         filter, output, -300       marks what IPVS has sent on unchanged
//	unmark-output       filter, output, -299       takes other marks away from that
//	prerouting          filter, prerouting, -99    leads packets to IPVS; sources, no endpoints
//	output              route, output, -99         the same for the host's own
//	unused-prerouting   filter, prerouting, -97    drops and rejects what no instance led to IPVS
//	unused-output       filter, output, -97        the same for the host's own
//	IPVS                output -98, input 98, 99
//	input               filter, input, 110         resets TCP connections that IPVS has forgotten
//	postrouting         nat, postrouting, 100      masquerade, hairpin: by conntrack's flow
//	unmark-postrouting  filter, postrouting, 110
//
// Destinations are translated at -100, by whoever does. What another backend of kernlb has sent to
// an endpoint is not led to IPVS: its connections go on when it goes, and while both are in place,
// it has all new ones.
//
// The masquerade mark of the model is not needed and not set.
//
// The mark 0x80000000 is on what IPVS sends on by direct routing, from output to postrouting: it
// still goes to the address of the service, and must not be led to IPVS again.
//
// # Ownership
//
// A virtual server is ours if the high half of its flags holds the number made of the instance's
// name: the kernel keeps bits it does not know. Others are never touched; one that is where ours
// must be is reported by [Backend.Check] as a [dataplane.CollisionError], unless [Config.TakeOver]
// lets the service have it: then it is edited until it is ours, and its connections go on.
//
// The same number is the group of a device that we made and the metric of an address that we bound
// (IFLA_GROUP, IFA_RT_PRIORITY): the kernel sets them when it makes the one and binds the other,
// and lists them. A device that was there before is used and not removed. Addresses that others
// bound to it stay; on a device of ours they go with the device. What an instance has made under
// another name, or no longer needs, it removes.
//
// # Commits and draining
//
// IPVS has no transactions; the companion tables have. What restricts comes before what opens, and
// what is new before what is old:
//
//  1. In a transaction, the companion gets to know new frontends, new source ranges of old ones,
//     and what sysctls and timeouts were.
//  2. The rules and the routes are added, sysctls and timeouts are set. If there are new source
//     ranges, the commit waits until no packet is under way any more that came before them
//     (membarrier(2), some 10 ms).
//  3. What is new is added to IPVS.
//  4. In a transaction, frontends become as they are wanted.
//  5. What is old is taken from IPVS. Sysctls and timeouts that are no longer wanted are restored.
//  6. In a transaction, the companion forgets what is gone.
//
// Transactions with nothing between them are one. [Backend.Cleanup] goes the same way: virtual
// servers first, then rules and routes, then sysctls and timeouts, and the companion last.
//
// The first and the last transaction replace the version of the instance, an element of the set
// "version" in the table ip. In between it has the comment "writing". Another writer, in this
// process or another, cannot replace the same version, and has a conflict; one that finds the
// comment reads everything and takes over, upon which the first has a conflict. Settle is such a
// writer as well. Where everybody keeps to the lock ([Backend.Lock]), conflicts are rare.
//
// A process that is killed leaves each virtual server with the destinations that it had before,
// with those that are wanted, or with some of those that only one of the two has; never without one
// that both have, and never reachable by clients that neither state admits. The version says that a
// commit has not ended, so that the next apply reads everything and ends it. One case is left to
// the next full reading: a writer that was taken over while it was stopped for longer than 10 s,
// goes on, sends commands, and is killed before its next look at the version.
//
// A TCP endpoint that leaves gets weight 0 and is deleted by [Backend.Settle] when it has no
// connections, or after [Config.DrainLimit], when those that are left are reset; UDP and SCTP
// endpoints are deleted at once. With a service that is removed, its connections end.
//
// Once an apply has returned, no new connection is led to an endpoint that it took away, whatever
// affinity remembers: expire_quiescent_template makes IPVS forget a client's endpoint whose weight
// is 0. A connection that has begun stays where it is, also if its first packet was not answered
// yet.
//
// # Drift
//
// IPVS tells nobody of changes. What [Backend.Integrity] finds, and [dataplane.Engine.Run] mends,
// depends on what the kernel offers to tell it by:
//
//   - Addresses and devices: the kernel sends a notice. Rules and routes: where a marked packet
//     would be routed to in either family. Sysctls and timeouts: they are read. Each look finds
//     these.
//   - The companion: the generation of the ruleset. After a foreign transaction the version is
//     asked for, and the companion is read again at most eight times at once, then once a second
//     and for a twentieth of the time.
//   - Virtual servers that are deleted: each holds a reference to the module ip_vs, whose number is
//     in /sys/module/ip_vs/refcnt. If it sinks, all virtual servers are read. Those of other
//     namespaces hold references, too, so such readings are rationed by the engine. Who deletes one
//     and adds another between two looks is not noticed by it, nor is anybody where IPVS is built
//     into the kernel.
//   - Destinations, and how virtual servers are configured: nothing tells, so they are compared,
//     for [Config.CompareShare] of the time. One half of it is for the outlines of all virtual
//     servers of IPv4: their configuration, and how many destinations they have. The other half is
//     for all that there is to say of single ones, which takes turns, one at least in each look:
//     weights of IPv4, and everything of IPv6. Then everything that differs is put right at once.
//
// So n virtual servers are compared once in Look + n×c / (CompareShare/2), where c is what one
// takes. In an emulated machine, some ten times slower than others, c is 1.3 µs for outlines, 11 µs
// for ten destinations of IPv4, and 430 µs for those of IPv6. A destination of IPv4 that was
// deleted there by hand is noticed within 0.6 s among 100 virtual servers, 3.5 s among 1,000 and
// 33 s among 10,000; with a CompareShare of 0.01, within 0.5 s among 1,000 and 3 s among 10,000.
//
// The engine reads everything every five minutes ([dataplane.RunOptions]). [Backend.Watch] follows
// addresses, rules and routes.
//
// The kernel lists virtual servers in parts, and counts to find where it was. If others add or
// delete some meanwhile, a reading may miss one of ours; the commit that adds it again then has a
// conflict, and all is read again.
//
// # Sysctls and timeouts
//
// net.ipv4.vs.conntrack, expire_nodest_conn and expire_quiescent_template and net.ipv4.ip_forward
// are set to 1; with [Config.StrictARP], net.ipv4.conf.all.arp_ignore to 1 and arp_announce to 2.
// [Config.Timeouts] says which timeouts of IPVS are set. What they were is in the companion before
// they are set. It is restored by [Backend.Cleanup], or when they are no longer wanted, unless
// there is a sign that somebody relies on what they are:
//
//   - the value is not the one that we have set: that of a timeout is known as long as the
//     configuration says so;
//   - another instance records the sysctl or the timeout: the last one that goes restores what it
//     was before the first;
//   - net.ipv4.vs and timeouts: there are virtual servers of others;
//   - ip_forward: there are iptables tables, or base chains of others in the hook forward.
//     Firewalls and programs that run containers have them, and some of these set ip_forward only
//     if it is 0.
//
// Then it is left, and the logger is told at the level info.
//
// net.ipv4.vs.conn_reuse_mode is left alone. Its default, 1, gives a client that uses a port again
// a new endpoint where that is safe; 0 gives it the old one, even one that is gone, and so defeats
// expire_nodest_conn (Documentation/networking/ipvs-sysctl.rst). kube-proxy sets 0 before Linux
// 5.9, where 1 with conntrack dropped the first packet of such a connection (commit f0a5e4d7a594,
// "ipvs: allow connection reuse for unconfirmed conntrack"). We need 5.10.
//
// # Forwarding
//
// By direct routing and through tunnels, packets arrive at the endpoint as they were sent: it must
// have the address of the service, and not answer ARP for it; for a tunnel also a device that takes
// the packets out (ipip, ip6tnl). Endpoints listen at the port of the service, and there are no
// node ports: else [Backend.Check] refuses. Answers may go past the node. A direct endpoint is on a
// link of the node.
//
// # Limits
//
//   - The scheduler "random" is refused, as are source ranges of node ports.
//   - Loopback addresses take no node ports (servicemodel.Node.LocalhostNodePorts is refused):
//     what comes from a loopback address, as what the host sends to one does, IPVS does not send to
//     another machine (crosses_local_route_boundary in net/netfilter/ipvs/ip_vs_xmit.c).
//   - A client that has affinity is remembered for the timeout after its last connection has ended,
//     for which IPVS takes up to two minutes.
//   - Where pods and the host have endpoints of their own, their affinity is a hash of the client's
//     address (mh), of all its bits.
//   - IPVS does not see it when somebody else cuts a connection, such as package conntrack/flows:
//     its endpoint is waited for until the drain limit.
//   - Direct routing and tunnels are never masqueraded.
//   - Link-local addresses take no node ports.
//   - Linux 7.x resizes its table of connections as their number grows, and may then not find what
//     it remembers of a client with session affinity, which is given another endpoint: two in a
//     hundred clients, where 120 new ones open some 2,000 connections within seconds (7.2); none
//     with the sysctl net.ipv4.vs.conn_lfactor at 8, which leaves the table small.
//   - IPVS forgets a UDP flow together with its endpoint: the next datagram of the client is
//     dropped, and the one after it gets another endpoint.
package ipvs
