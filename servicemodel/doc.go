// Package servicemodel is the pure heart of kernlb: what services are, and what they mean on
// one node.
//
//	name := servicemodel.Name{Namespace: "default", Name: "web"}
//	state := servicemodel.State{}.WithService(service).WithEndpoints(name, endpoints)
//
// A program describes the services it wants as a [State]: services, their endpoints and the [Node]
// they are seen from. [Resolve] decides everything that has to be decided about them (which
// endpoints the node may use, where it answers, whom it masquerades, rejects, drops) and yields a
// flat [Table] of frontends and pools. [Diff] compares two tables and yields the minimal
// [ChangeSet] that leads from one to the other. Backends translate change sets to kernel state;
// they decide nothing.
//
//	State ──Resolve──► Table ──Diff──► ChangeSet ──► a backend
//
// What a table means for a packet is said by [Table.Decide], which every backend is held against.
//
// # Sharing
//
// All values are immutable and share what did not change: a state with one endpoint replaced costs
// one service, and so do its resolution and its diff, however many services there are. A table
// remembers the state it was resolved from, so the next resolution looks only at what differs
// between the two states; and it keeps the frontends, pools and slots that stay.
//
// # Causes
//
// A frontend that rejects or drops has a [Cause], such as "2 endpoints, none ready":
// [Table.Cause]. It is found when it is asked for, from the state, and [Resolve] knows nothing of
// it. [Select] says what became of each endpoint, and [Table.Trace] how it comes that a packet goes
// where it goes.
//
// # Collisions
//
// Several services may claim the same address, port and protocol, say as external IP. One wins,
// always the same: the lower [Kind], then the lower name. The others are [Table.Conflicts]; when
// the winner goes, the next takes over. A service that wins nowhere has no pools.
//
// # Families
//
// IPv4 and IPv6 stand side by side in one table, but nothing crosses between them: addresses of a
// family are served by endpoints of that family only, and each family has its own pools, source
// ranges and node port addresses.
//
// The package does no I/O, imports the standard library only (and, of this module, a persistent map
// and a guess at misspelt names), and builds on every operating system.
package servicemodel
