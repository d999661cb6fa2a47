// Package plan turns a change set into the messages of a transaction, given the state of the
// kernel. It has no connection to the kernel.
//
// [Planner.Plan] plans each family's table. It changes the table, or replaces all of its contents.
// Rare features have their own files: chains for schedulers, the index of owners, and the clients
// that must forget an endpoint. [Plan.Write] writes a plan as messages, or in nft's language. A
// [Sweep] is the work that commits leave for later.
package plan
