// Package dataplane applies desired states to a kernel through a backend.
//
// The [Engine] drives the one pipeline of kernlb: it resolves a state, compares it with what the
// kernel holds, and hands the difference to a [Backend], which writes it. It reads the kernel back
// when it starts, when somebody else changed something, and after an error, so that what it
// compares with is what is really there.
//
// One bad service holds back nobody: what is invalid, what the backend cannot express and what
// collides with something foreign in the kernel is left out, and the [Result] names it; see
// [Engine.Apply]. Nor does a neighbour that commits to the same kernel all the time: see
// [Integrity]. Writers of one instance take turns where the backend is a [Locker].
//
// Some work is left to time: endpoints are drained, flows that a change left stale are deleted,
// what failed is tried again. [Engine.Apply] does what is due, [Engine.Run] the rest in time, and
// programs without Run call [Engine.Settle].
//
//	State ─resolve─► Table ─diff─► ChangeSet ─► Backend ─► kernel
//	                   ▲                                     │
//	                   └──────────────── observe ◄───────────┘
package dataplane
