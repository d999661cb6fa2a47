// Package ipvs is the IPVS backend of kernlb: it programs services as virtual servers over generic
// netlink, together with a small companion table of nf_tables. It runs no command-line tool, and
// needs Linux 5.10 or newer with IPVS and nf_tables. [New] opens the backend, and an engine writes
// to it:
//
//	backend, err := ipvs.New(nil)
//	…
//	defer backend.Close()
//	result, err := dataplane.New(backend, nil).Apply(ctx, state)
//
// # Objects
//
//   - A virtual server for each frontend, at its address and port; for a node port, a virtual
//     server at each address of the node that answers node ports. It also exists while the frontend
//     rejects or drops packets, so that draining connections continue.
//   - A virtual server by firewall mark for each frontend whose endpoints for pods and the host
//     differ from the endpoints for clients outside (external traffic policy Local). An instance
//     has 262,143 marks for these frontends and for ranges.
//   - A virtual server by firewall mark for each frontend at a range of ports, and a second one if
//     pods and the host have different endpoints. Its destinations have port 0, which keeps the
//     packet's port, or the single port of the endpoints.
//   - The companion: the tables ip and ip6 named [Config.Table]. Its chains are fixed; a frontend
//     consists of elements in sets.
//   - A rule and a local route in each family, which deliver packets with the instance's mark to
//     this machine. The rule matches the 13 upper bits. No device has the addresses of services. So
//     other ports of external addresses are not affected, the node does not answer ARP for these
//     addresses, and the host keeps its source address.
//   - With [Config.Device], a dummy device that has the addresses of services.
//
// # The device
//
// BGP speakers, ping and programs that list addresses expect the node to have the addresses of
// services, as kube-proxy assigns them to kube-ipvs0. With [Config.Device], cluster IPs, external
// IPs and load-balancer IPs are bound to that device, as /32 and /128, while a frontend is at the
// address. If another program has bound an address to any device, the backend does not touch that
// address. Services work the same way with and without a device, with these exceptions:
//
//   - Other ports of the addresses belong to the host: programs that listen on all addresses are
//     reachable there, and the host refuses packets to the remaining ports. Without a device, other
//     ports of cluster IPs are rejected, and other ports of other addresses are not affected.
//   - The node answers ARP for the addresses on all links, unless [Config.StrictARP] is set. It
//     never answers neighbour solicitations for them: in IPv6, a node answers only for addresses of
//     the link.
//   - Packets of the host to a service have the service's address as their source, and are always
//     masqueraded. Packets of the host to other destinations do not use such a source: IPv4
//     addresses have host scope, and IPv6 addresses are deprecated.
//   - With direct routing and tunnels, the host and the machines whose gateway is the node get no
//     answers, because the node treats the source of the answers as its own address.
//   - The kernel compares each new IPv4 address with all others of the device: the first sync of
//     5,000 addresses takes 0.7 s longer.
//
// So the conformance suite does not pass with a device: it fails for other ports, and for the
// host's source address.
//
// Addresses that a load balancer has bound for services do not answer node ports: addresses of any
// instance of this backend, and addresses on kube-proxy's kube-ipvs0 and kube-router's
// kube-dummy-if. Addresses on any other device do, except loopback and link-local addresses. IPv6
// addresses are usable at once, without duplicate address detection.
//
// # Hooks
//
//	unmark-output       filter, output, -300       removes marks from packets of IPVS
//	prerouting          filter, prerouting, -99    sends packets to IPVS; sources, no endpoints
//	output              route, output, -99         the same for the host's own
//	unused-prerouting   filter, prerouting, -97    drops, rejects packets that no instance marked
//	unused-output       filter, output, -97        the same for the host's own
//	IPVS                output -98, input 98, 99
//	input               filter, input, 110         resets TCP connections that IPVS has forgotten
//	postrouting         nat, postrouting, 100      masquerade, hairpin: by conntrack's flow
//	unmark-postrouting  filter, postrouting, 110
//
// Other programs translate destinations at priority -100. A packet that another backend of kernlb
// has sent to an endpoint does not reach IPVS. So its connections continue when that backend is
// removed, and while both are in place, that backend gets all new connections.
//
// This backend does not need or set the model's masquerade mark.
//
// # Marks
//
// All marks of an instance have the same twelve upper bits, [Config.Mark]. By default, these are
// 0xc0000000 and ten bits derived from the instance's name. The backend sets them only on packets
// to services, and removes them after IPVS has sent a packet on. If a packet's mark lacks these
// bits, it neither reads nor changes the mark.
//
//	Mark               a packet to IPVS; its 18 lower bits belong to other programs
//	Mark + 0x40000 + n the same, for the virtual server of that mark
//	Mark + 0x80000     a packet that IPVS sent on by direct routing, from output to postrouting:
//	                   its destination is still the service, and it must not reach IPVS again
//	Mark + 0xc0000 + n a packet that IPVS sent on for the virtual server of Mark + 0x40000 + n,
//	                   from output to postrouting, in a table with ranges
//
// Packets to ranges, and to virtual servers by mark, lose the bits that other programs set.
//
// Policy rules of other programs may match such marks, or may precede the rule of the instance.
// Each reading of the kernel checks for such rules, and logs a warning ([Config.Logger]).
//
// # Without IPv6
//
// The kernel refuses a local IPv6 route if net.ipv6.conf.lo.disable_ipv6 is 1, and has no IPv6 at
// all if it was booted with ipv6.disable=1. It binds no IPv6 address to a device with IPv6
// disabled; before [Config.Device] exists, net.ipv6.conf.default.disable_ipv6 decides. [Check] then
// refuses the family, and an engine serves only IPv4, even if IPv6 is disabled while the program
// runs. With servicemodel.Node.OnlyFamily the other family has no virtual servers, no companion
// table, no rule and no route. A node without IPv4 still has the companion table ip, but without
// chains, because this table has the version.
//
// # Ownership
//
// A virtual server is ours if the upper half of its flags is the number derived from the instance's
// name: the kernel keeps bits that it does not know. Other virtual servers are never changed. If
// such a virtual server collides with ours, [Check] reports a [backends.CollisionError]. With
// [Config.TakeOver], the service takes over the virtual server: the backend edits it in place, and
// its connections continue.
//
// The same number is the group of a device that we created and the metric of an address that we
// bound (IFLA_GROUP, IFA_RT_PRIORITY). The kernel sets the group or metric when it creates the
// device or binds the address, and reports it in dumps. An existing device is used, and never
// removed. Addresses that other programs bound to it stay; if we created the device, they are
// removed together with the device. The instance removes devices and addresses that it created but
// no longer needs, for example because the device has a new name.
//
// # Commits and draining
//
// IPVS has no transactions, but the companion tables do. Restrictions take effect before
// permissions, and additions before removals:
//
//  1. A transaction adds new frontends to the companion, new source ranges of old frontends, and
//     the earlier values of sysctls and timeouts.
//  2. The rules and the routes are added, sysctls and timeouts are set. If there are new source
//     ranges, the commit waits until no packet from before these ranges is in flight
//     (membarrier(2), some 10 ms).
//  3. New virtual servers and destinations are added to IPVS.
//  4. A transaction changes the frontends of the companion to the desired ones.
//  5. Old virtual servers and destinations are removed from IPVS. Sysctls and timeouts that are no
//     longer configured are restored.
//  6. A transaction removes old frontends from the companion.
//
// Consecutive transactions with nothing in between are combined. Cleanup uses the same order:
// virtual servers first, then rules and routes, then sysctls and timeouts, and the companion last.
//
// The first and the last transaction replace the version of the instance, an element of the set
// "version" in the table ip. In between, it has the comment "writing". Another writer, in the same
// or another process, cannot replace the same version, and gets a conflict. A writer that finds the
// comment reads everything and takes over, and then the first writer gets a conflict. Settle is
// such a writer, too. If every writer uses the lock ([backends.Locker]), conflicts are rare.
//
// If a process is killed, each virtual server has the earlier destinations, the desired
// destinations, or the destinations that both states have and some others. A virtual server never
// lacks a destination that both states have, and clients that neither state admits never reach it.
// The version says that a commit has not finished, so the next apply reads everything and completes
// the commit. In one case, only the next full reading repairs the result: a writer is stopped for
// longer than 10 s while another writer takes over, continues, sends commands, and is killed before
// its next check of the version.
//
// A removed TCP endpoint gets weight 0. Settle deletes it when it has no connections, or after
// [Config.DrainLimit]; any remaining connections are then reset. UDP and SCTP endpoints are deleted
// at once. Connections of a removed service end with it.
//
// Once an apply has returned, no new connection reaches an endpoint that the apply removed, even
// with affinity: with expire_quiescent_template, IPVS forgets clients of an endpoint whose weight
// is 0. A connection that has started keeps its endpoint, even if its first packet has not been
// answered yet.
//
// # Drift
//
// IPVS does not report changes. Integrity detects changes, and [dataplane.Engine.Run] repairs them.
// The method depends on the kind of object:
//
//   - Addresses and devices: the kernel sends notifications. Rules and routes: the backend requests
//     the route of a marked packet in each family. Sysctls and timeouts: the backend reads them.
//     Each check finds these changes.
//   - The companion: the generation of the ruleset reveals foreign transactions. The backend then
//     reads the version. It reads the companion again at most eight times in a row, then at most
//     once a second and for at most a twentieth of the time.
//   - Deleted virtual servers: each virtual server has a reference to the module ip_vs, and
//     /sys/module/ip_vs/refcnt is the number of references. If the number decreases, the backend
//     reads all virtual servers. Virtual servers of other namespaces also have references, so the
//     engine rations such readings. The number does not reveal that one virtual server was deleted
//     and another one added between two checks. It does not exist if IPVS is built into the kernel.
//   - Destinations, and the configuration of virtual servers: the kernel gives no hint, so the
//     backend compares them, for at most [Config.CompareShare] of the time. One half of that time
//     is for the outlines of all IPv4 virtual servers: their configuration, and the number of their
//     destinations. The other half is for full comparisons of single virtual servers in turn, at
//     least one in each check: weights of IPv4, and everything of IPv6. All differences that it
//     finds are repaired at once.
//
// So n virtual servers are compared once within CheckInterval ([dataplane.RunOptions]) + n×c /
// (CompareShare/2), where c is the time for a single virtual server. In an emulated machine that is
// some ten times slower than others, c is 1.3 µs for outlines, 11 µs for ten IPv4 destinations, and
// 430 µs for ten IPv6 destinations. There, an IPv4 destination that was deleted by hand is noticed
// within 0.6 s among 100 virtual servers, 3.5 s among 1,000 and 33 s among 10,000; with a
// CompareShare of 0.01, within 0.5 s among 1,000 and 3 s among 10,000.
//
// The engine reads everything every five minutes ([dataplane.RunOptions]). Watch listens for
// changes of addresses, rules and routes.
//
// In a family, a node port has no virtual server if the node has no address that answers node
// ports, or if services use its port at all such addresses. A reading then gets the node port from
// its record in the companion, and the observation lacks its pool unless another frontend has the
// same pool. The engine assumes that the pool is as desired.
//
// The kernel lists virtual servers in several messages, and finds the start of the next message by
// counting. If other programs add or delete virtual servers during a reading, the reading may miss
// one of ours. The commit that adds it again then gets a conflict, and everything is read again.
//
// # Sysctls and timeouts
//
// net.ipv4.vs.conntrack, expire_nodest_conn and expire_quiescent_template and net.ipv4.ip_forward
// are set to 1; with [Config.StrictARP], net.ipv4.conf.all.arp_ignore to 1 and arp_announce to 2.
// [Config.Timeouts] selects which timeouts of IPVS are set. The companion records the earlier
// values before the new values are set. Cleanup restores them, and so does a commit if they are no
// longer configured, unless another program seems to rely on the current values:
//
//   - the current value is not the value that we set; our value of a timeout is known only as long
//     as it is configured;
//   - another instance has a record of the sysctl or the timeout: the instance that is removed last
//     restores the value that was set before the first instance;
//   - net.ipv4.vs and timeouts: other programs have virtual servers;
//   - ip_forward: there are iptables tables, or other programs' base chains in the hook forward.
//     Firewalls and container runtimes create these, and some set ip_forward only if it is 0.
//
// The value then stays, and the logger gets a record at info level.
//
// net.ipv4.vs.conn_reuse_mode is not changed. With its default, 1, a client that reuses a port gets
// a new endpoint where that is safe; with 0, it gets its old endpoint, even a removed one, which
// defeats expire_nodest_conn (Documentation/networking/ipvs-sysctl.rst). kube-proxy sets 0 before
// Linux 5.9, where 1 together with conntrack dropped the first packet of such a connection (commit
// f0a5e4d7a594, "ipvs: allow connection reuse for unconfirmed conntrack"). This package needs 5.10
// anyway.
//
// # Forwarding
//
// With direct routing and tunnels, packets arrive at the endpoint unchanged. So the endpoint must
// have the address of the service, and not answer ARP for it. A tunnel also needs a device that
// decapsulates the packets (ipip, ip6tnl). Endpoints must listen on the port of the service, and
// node ports are not possible: [Check] refuses anything else. Answers may bypass the node. With
// direct routing, each endpoint must be on a link of the node.
//
// # Limits
//
//   - The scheduler "random" and source ranges of node ports are refused.
//   - Loopback addresses do not answer node ports (servicemodel.Node.LocalhostNodePorts is
//     refused): packets of the host to a loopback address also come from a loopback address, and
//     IPVS does not send such packets to another machine (crosses_local_route_boundary in
//     net/netfilter/ipvs/ip_vs_xmit.c).
//   - A client with affinity is remembered for the timeout after its last connection has ended.
//     IPVS takes up to two minutes to end a connection.
//   - The ports of a service remember their clients independently: affinity for a whole service is
//     refused. A virtual server by firewall mark does not change the port that the client
//     addressed.
//   - Where pods and the host have separate endpoints, affinity is a hash of all bits of the
//     client's address (mh). The same is true for ranges of ports whose endpoints have a single
//     port. At other ranges, a client has the same endpoint at all ports.
//   - Direct routing and tunnels are refused for ranges of ports.
//   - IPVS does not notice when another program, such as package dataplane/flows, cuts a
//     connection: the endpoint then drains until the drain limit.
//   - Connections with direct routing and tunnels are never masqueraded.
//   - Link-local addresses do not answer node ports.
//   - If a firewall drops packets in INPUT, it also drops load balancers' packets to health check
//     node ports: no rule of the companion can override a drop in another table. kube-proxy accepts
//     these ports in the tables of iptables; with ipvs, allow them in that firewall.
//   - Linux 7.x resizes its connection table as the number of connections grows. It may then not
//     find the remembered endpoint of a client with session affinity, and the client gets a
//     different endpoint. With 7.2, this happens to two clients in a hundred if 120 new clients
//     open some 2,000 connections within seconds. It does not happen if the sysctl
//     net.ipv4.vs.conn_lfactor is 8, which keeps the table small.
//   - IPVS forgets a UDP flow together with its endpoint: the client's next datagram is dropped,
//     and the one after that is sent to a different endpoint.
package ipvs
