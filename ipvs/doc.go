// Package ipvs is the IPVS backend of kernlb: it holds services as virtual servers over generic netlink, with a small companion table of
// nf_tables beside them. It runs no command-line tool, and needs Linux 5.10 or newer with IPVS and nf_tables.
//
// # Objects
//
//   - A virtual server for each frontend, at its address and port; for a node port, one at each address of the node that takes node ports. It exists also
//     while the frontend rejects or drops, so that connections which drain go on.
//   - A virtual server by firewall mark for each frontend where pods and the host have other endpoints than clients outside (external traffic policy Local). The
//     marks are 0xc0000001 and up.
//   - The tables ip and ip6 named [Config.Table], the companion. Its chains are fixed; a frontend is elements of sets.
//   - A rule and a local route in each family, which deliver packets with the mark 0x40000000 to this machine: no address of a service is bound to any
//     device, so that other ports of external addresses are not touched, nobody answers ARP for them, and the host keeps its source address.
//
// # Hooks
//
//	unmark-output       filter, output, -300       takes our marks away from what IPVS has sent on
//	prerouting          filter, prerouting, -150   leads packets to IPVS; sources, reject, drop
//	output              route, output, -150        the same for the host's own
//	IPVS                output -98, input 98, 99
//	input               filter, input, 110         resets TCP connections that IPVS has forgotten
//	postrouting         nat, postrouting, 100      masquerade, by what conntrack knows of the flow; hairpin
//	unmark-postrouting  filter, postrouting, 110
//
// The masquerade mark of the model is not needed and not set.
//
// # Ownership
//
// A virtual server is ours if the high half of its flags holds the number made of the instance's name: the kernel keeps bits it does not know. Others are never
// touched; one that is where ours must be is an [ErrForeign], before anything is written.
//
// # Commits and draining
//
// IPVS has no transactions. A commit first adds what is new to IPVS, then writes the companion tables in one transaction, then takes away: new before old. A TCP
// endpoint that leaves gets weight 0 and is deleted by [Backend.Settle] when it has no connections, or after [Config.DrainLimit], when those that are left are
// reset; UDP and SCTP endpoints are deleted at once. With a service that is removed, its connections end.
//
// # Sysctls
//
// net.ipv4.vs.conntrack, expire_nodest_conn and expire_quiescent_template and net.ipv4.ip_forward are set to 1. What they were is kept in the companion table
// and restored by [Backend.Cleanup].
//
// # Limits
//
//   - The scheduler "random" is refused, as are source ranges of node ports and localhost node ports.
//   - A client that has affinity is remembered for the timeout after its last connection has ended, for which IPVS takes up to two minutes.
//   - Where pods and the host have endpoints of their own, their affinity is a hash of the client's address (mh).
//   - IPVS does not see it when somebody else cuts a connection, such as package conntrack/flows: its endpoint is waited for until the drain limit.
//   - Direct routing and tunnels are never masqueraded.
//   - Link-local addresses take no node ports.
//   - IPVS forgets a UDP flow together with its endpoint: the next datagram of the client is dropped, and the one after it gets another endpoint.
//
// The sysctl conn_reuse_mode is left alone: it needs another value before Linux 5.9 only.
package ipvs
