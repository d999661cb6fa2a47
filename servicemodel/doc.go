// Package servicemodel defines services and what they mean on one node: all semantics of kernlb are
// here.
//
//	name := servicemodel.Name{Namespace: "default", Name: "web"}
//	state := servicemodel.State{}.WithService(service).WithEndpoints(name, endpoints)
//
// A program describes the services it wants as a [State]: services, their endpoints, and the [Node]
// that balances them. [Resolve] makes all decisions about them: which endpoints the node may use,
// at which addresses it answers, and whose packets it masquerades, rejects or drops. The result is
// a flat [Table] of frontends and pools. [Diff] compares two tables and returns the minimal
// [ChangeSet] from one to the other. Backends translate change sets to kernel state and decide
// nothing.
//
//	State ──Resolve──► Table ──Diff──► ChangeSet ──► a backend
//
// [Table.Decide] defines the meaning of a table for a packet. The tests compare every backend with
// it.
//
// # Sharing
//
// All values are immutable and share their unchanged contents. Therefore, the cost of replacing the
// endpoints of one service depends on that service, and not on the number of services: in the
// state, in [Resolve] and in [Diff]. A table remembers the state from which it was resolved. The
// next resolution reads only the difference between the two states, and reuses the frontends, pools
// and slots that did not change.
//
// # Causes
//
// A frontend that rejects or drops packets has a [Cause], such as "2 endpoints, none ready".
// [Table.Cause] derives it from the state on request; [Resolve] does not compute it. [Select]
// reports whether each endpoint is used, and if not, the reason. [Table.Trace] explains the path of
// a packet step by step.
//
// # Collisions
//
// Several services may claim the same address, port and protocol, for example as an external IP.
// The winner is always the same: the lower [Kind], then the lower name. [Table.Conflicts] lists the
// claims that lost. When the winner is removed, the next service takes over. A service that wins no
// address has no pools.
//
// # Families
//
// One table covers IPv4 and IPv6. The families are independent: endpoints serve only addresses of
// their own family. Each family has its own pools, source ranges and node port addresses. A node
// with [Node.OnlyFamily] serves only the addresses of that family. The other addresses are left
// out, but do not count as refused.
//
// The package does no I/O and builds on every operating system. It imports only the standard
// library and two packages of this module: a persistent map, and suggestions for misspelt names.
package servicemodel
