// Package proxy is a dataplane without a kernel mechanism and without privileges. It has a
// [backends.Backend] that listens at the addresses of services, and forwards connections and
// datagrams to their endpoints. It runs wherever Go runs.
//
//	backend, err := proxy.New(nil)
//	…
//	keeper, err := flows.New(backend, nil) // ends what a change left stale
//	…
//	engine := dataplane.New(backend, &dataplane.Config{Flows: keeper})
//
// # How it works
//
// The proxy decides nothing. Each new connection, and the first datagram of each flow, is a
// [servicemodel.Packet], and [servicemodel.Table.Decide] decides about it. The proxy does only the
// work of a kernel: it chooses one endpoint of the pool, and carries bytes.
//
//	frontends ──sockets.go──► listeners ──accept──► Decide ──pick──► endpoint ──relay──► bytes
//	pools ──balance.go──────────────────────────────────────┘
//
// A commit opens and closes the listeners that differ, and swaps the table. Other services are not
// affected. A frontend that sends no client to an endpoint has no listener: the operating system
// refuses its clients, as a kernel backend would. Open connections belong to no listener, and
// continue when their frontend is changed or removed.
//
// The proxy's own connections take the place of the kernel's connection tracking. [Backend] has the
// methods that a flows.Keeper (package dataplane/flows) needs of a table. So the keeper leaves,
// drains or cuts connections of removed endpoints, as each service asks, and UDP flows never stay
// with removed endpoints.
//
// # Differences from kernel backends
//
//   - An endpoint sees an address of the node as its client. If it must know the client, use the
//     PROXY protocol ([Config.Header]).
//   - Listeners need addresses of the host. A service is refused as a whole, by name, if the host
//     lacks one of its addresses, or if a port is taken or privileged. If the sockets of two
//     services exclude each other, one of the services is refused. [Config.Map] moves addresses, or
//     leaves them out.
//   - The operating system accepts a connection before the proxy sees it. If the connection must be
//     dropped, or only some clients of the frontend are rejected, the proxy resets it. It drops
//     datagrams. If a frontend balances no client, all its clients are refused, even clients that
//     should be dropped.
//   - The proxy refuses SCTP, direct routing, tunnels, recognition of pods by interface, and the
//     schedulers dh, lblc and lblcr. wrr is the default. sh and mh hash the client with each
//     endpoint (rendezvous hashing), so that no client moves without need.
//   - Ranges of services (ServiceCIDRs) and the mark have no effect, because a proxy is not a
//     router.
//   - Connections end with the process, because their bytes go through it.
package proxy
