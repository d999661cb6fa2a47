// Package servicemodel is the pure heart of kernlb: what services are, and what they mean on
// one node.
//
// A program describes the services it wants as a [State]: services, their endpoints and the
// [Node] they are seen from. [Resolve] decides everything that has to be decided about them (which endpoints
// the node may use, where it answers, whom it masquerades, rejects, drops) and yields a flat
// [Table] of frontends and pools. [Diff] compares two tables and yields the minimal [ChangeSet]
// that leads from one to the other. Backends translate change sets to kernel state; they decide nothing.
//
//	State ──Resolve──► Table ──Diff──► ChangeSet ──► a backend
//
// All values are immutable and share what did not change: a state with one endpoint
// replaced costs one service, and so do its resolution and its diff, however many services there are.
//
// The package does no I/O, imports the standard library only, and builds on every operating system.
package servicemodel
