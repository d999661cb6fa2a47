// Package plan makes plans: from a change set, and from what the kernel holds, to the messages of a
// transaction. It has no connection to the kernel.
//
// [Planner.Plan] looks at each family's table. It changes a table that stays, or writes all of its
// contents anew. Rare features have files of their own: chains for schedulers, the index of owners,
// and the clients that must forget an endpoint. [Plan.Write] writes a plan as messages, or in nft's
// language. A [Sweep] is the work that commits leave for later.
package plan
