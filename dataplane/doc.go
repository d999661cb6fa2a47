// Package dataplane applies desired states to a kernel through a backend.
//
// The [Engine] drives the one pipeline of kernlb: it resolves a state, compares it with what the
// kernel holds, and hands the difference to a [Backend], which writes it. It reads the kernel back
// when it starts, when somebody else changed something, and after an error, so that what it
// compares with is what is really there.
//
// One bad service does not hold back the others: a service that is invalid, that the backend cannot
// express, or that collides with something foreign in the kernel is left out, and the [Result]
// names it; see [Engine.Apply]. Nor does a neighbour that commits to the same kernel all the time;
// see [Integrity]. Writers of one instance take turns where the backend is a [Locker].
//
// Some work is left to a later time: endpoints drain before they are removed, stale flows are
// deleted, what failed is tried again. [Engine.Apply] does the work that is due, [Engine.Run] does
// the rest when it becomes due, and programs without Run call [Engine.Settle].
//
// Many programs can share one instance, each with services of owners of its own: see [Parts].
//
//	State ─resolve─► Table ─diff─► ChangeSet ─► Backend ─► kernel
//	                   ▲                                     │
//	                   └──────────────── observe ◄───────────┘
package dataplane
