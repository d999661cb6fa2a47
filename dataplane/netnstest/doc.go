// Package netnstest builds small Kubernetes-like networks from Linux network namespaces, sends real
// packets through them, and reports the fate of each packet. All backends of kernlb are tested on
// these networks.
//
// [New] (or [Start] in a test) builds a [Cluster]:
//
//	            internet                                 outside1  outside2 …
//	     answers for every address               198.51.100.11   198.51.100.12
//	               │                           2001:db8:51::b   2001:db8:51::c
//	               │                                        │
//	          eth0 │ 192.0.2.10    2001:db8:2::10      eth1 │ 198.51.100.1
//	 default route │ 192.0.2.11    2001:db8:2::11           │ 2001:db8:51::1
//	     ┌─────────┴────────────────────────────────────────┴─────────┐
//	     │                    node (the one under test)               │
//	     └──┬──────────┬──────────┬──────────────────────────┬────────┘
//	   veth1│     veth2│     veth3│ (or bridge cni0)     eth2 │ 172.18.0.10
//	        │          │          │                           │ fd00:172:18::10
//	      pod1       pod2       pod3                          │
//	10.244.1.1 10.244.1.2 10.244.1.3              othernode 172.18.0.20
//	fd00:10:244:1::1  ::2        ::3                        fd00:172:18::20
//	                                              remote1, remote2 … (pods there)
//	                                              10.244.2.1       10.244.2.2
//	                                              fd00:10:244:2::1 fd00:10:244:2::2
//
// To run a backend on the node, set the namespace in its configuration, such as NetNS of
// nftables.Config to cluster.Node.NS.NetNS().
//
// Each pod of the node, the node, the other node with its pods, the outside clients, and the
// internet is one anonymous network namespace. Only a file descriptor refers to it, so it
// disappears with [Cluster.Close] or with the process. Everything is dual stack. The default route
// of every namespace except the internet leads to the node, and the node's default route leads to
// the internet. So service addresses (see [Net]) need no route: packets to them reach the node.
// Packets that the node does not translate arrive at the internet, which answers for every address
// under the name [Net].Internet. So a packet that no rule matches gets an answer, and cannot be
// mistaken for a dropped packet.
//
// Routes are host routes and neighbours are permanent, as with a CNI plugin. IPv6 duplicate address
// detection and link-local addresses are off, so a cluster can be used at once.
//
// # Servers and probes
//
// [Host.Serve] starts an echo server that answers "name address:port\n": its own name, and the
// source that it saw. A [Probe] sends one connection attempt (TCP), datagram (UDP) or INIT chunk
// (SCTP). Its [Outcome] is answered (by which server, and which source that server saw), refused,
// dropped or unreachable. [Probe.Send] and [SendAll] never retry: one packet decides. [Conns] keeps
// thousands of TCP connections open and reports those that died.
//
// SCTP needs no kernel support, because both ends are raw sockets. Do not load the kernel's sctp
// module: the kernel would then also answer, with an ABORT.
//
// # Privileges
//
// The package needs CAP_SYS_ADMIN and CAP_NET_ADMIN, or an unprivileged user namespace: call [Main]
// from TestMain (in a program, [ReExecInUserNS]), and [Require] in each test.
package netnstest
