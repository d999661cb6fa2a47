// Package servicemodel is the pure heart of kernlb. It defines services, and their meaning on one
// node.
//
//	name := servicemodel.Name{Namespace: "default", Name: "web"}
//	state := servicemodel.State{}.WithService(service).WithEndpoints(name, endpoints)
//
// A program describes the services it wants as a [State]: services, their endpoints, and the [Node]
// that balances them. [Resolve] makes all decisions about them: which endpoints the node may use,
// at which addresses it answers, and whose packets it masquerades, rejects or drops. It yields a
// flat [Table] of frontends and pools. [Diff] compares two tables and yields the minimal
// [ChangeSet] that leads from one to the other. Backends translate change sets to kernel state and
// decide nothing.
//
//	State ──Resolve──► Table ──Diff──► ChangeSet ──► a backend
//
// [Table.Decide] says what a table means for a packet. The tests compare every backend with it.
//
// # Sharing
//
// All values are immutable and share their unchanged contents. Replacing the endpoints of one
// service therefore costs as much as that service, in the state, the resolution and the diff,
// however many services there are. A table remembers the state that it was resolved from. The next
// resolution looks only at the difference of the two states, and keeps the frontends, pools and
// slots that stay.
//
// # Causes
//
// A frontend that rejects or drops packets has a [Cause], such as "2 endpoints, none ready".
// [Table.Cause] finds it in the state when a caller asks; [Resolve] does not compute it. [Select]
// says whether each endpoint is used, and if not, why. [Table.Trace] explains, step by step, where
// a packet goes.
//
// # Collisions
//
// Several services may claim the same address, port and protocol, for example as external IP. The
// same one always wins: the lower [Kind], then the lower name. The others are [Table.Conflicts].
// When the winner goes, the next takes over. A service that wins nowhere has no pools.
//
// # Families
//
// IPv4 and IPv6 stand side by side in one table, and nothing crosses between them. Only endpoints
// of a family serve addresses of that family. Each family has its own pools, source ranges and node
// port addresses. A node that has only one family, [Node.OnlyFamily], serves the addresses of that
// family, and leaves out the others without a refusal.
//
// The package does no I/O and builds on every operating system. It imports only the standard
// library and two packages of this module: a persistent map, and suggestions for misspelt names.
package servicemodel
