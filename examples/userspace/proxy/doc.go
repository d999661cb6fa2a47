// Package proxy is a dataplane without a kernel mechanism and without privileges: a
// [dataplane.Backend] that listens where services answer, and forwards connections and datagrams to
// their endpoints. It runs wherever Go runs.
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
// [servicemodel.Packet], and [servicemodel.Table.Decide] says what must become of it. What is left
// to the proxy is what a kernel does: to choose one endpoint of the pool, and to carry bytes.
//
//	frontends ──sockets.go──► listeners ──accept──► Decide ──pick──► endpoint ──relay──► bytes
//	pools ──balance.go──────────────────────────────────────┘
//
// A commit opens and closes the listeners that differ, and swaps the table; untouched services
// notice nothing. A frontend that sends nobody to an endpoint has no listener: the operating system
// refuses its clients, as a kernel backend would. Connections that are open belong to no listener,
// and go on when their frontend changes or goes.
//
// What the kernel's connection tracking is to other backends, the proxy's own connections are to
// this one: [Backend] has the methods that a flows.Keeper (package dataplane/flows) wants of a
// table, so that connections to endpoints that leave are left, drained or cut as services want it,
// and UDP flows never stay with endpoints that are gone.
//
// # What cannot be the same
//
//   - An endpoint sees an address of the node as its client. Where it must know the client, the
//     PROXY protocol tells it ([Config.Header]).
//   - Listeners need addresses of the host. A service with an address that the host does not have,
//     or with a port that is taken or privileged, is refused as a whole, by name; so is one
//     of two services whose sockets exclude each other. With [Config.Map], addresses are elsewhere,
//     or nowhere.
//   - A connection that must be dropped, or rejected for some of its clients, is accepted by the
//     operating system before the proxy sees it: it is reset. Datagrams are dropped. Where nobody
//     is balanced, everybody is refused, also those who should be dropped.
//   - SCTP, direct routing and tunnels, pods told by interface, and the schedulers dh, lblc
//     and lblcr are refused. wrr is the default. sh and mh hash the client with each endpoint
//     (rendezvous hashing), so that no client moves without need.
//   - Ranges of services (ServiceCIDRs) and the mark mean nothing: a proxy is no router.
//   - Connections end with the process, because their bytes go through it.
package proxy
