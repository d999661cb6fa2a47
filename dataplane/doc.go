// Package dataplane applies desired states to a kernel through a backend.
//
//	backend, err := nftables.New(nil) // or that of another package; memory.New(nil) in a test
//	…
//	engine := dataplane.New(backend, nil)
//	result, err := engine.Apply(ctx, state)
//	…
//	fmt.Print(result.Changes) // what was written, line by line
//	for _, r := range result.Refused {
//		fmt.Println(r) // a service that was left out, and why
//	}
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
// There are two ways to use an engine, and they go together. [Engine.Apply] makes the kernel hold a
// state and returns when it does. A program that runs for long calls [Engine.Run] in a goroutine
// and [Engine.Set] whenever it wants something else; Set does not wait, and Run keeps the kernel as
// the newest state says: it tries again what failed, and repairs what others change. Set, Apply and
// [Engine.Cleanup] each take the place of all that was asked for before, so that no order of calls
// brings back an older state. [Engine.Wait] waits for a state, [Engine.Status] says at any time
// what is wanted, what is held, and what failed last, and observers ([Engine.Subscribe]) are told
// of each [Event].
//
// Some work is left to a later time: endpoints drain before they are removed, stale flows are
// deleted. [Engine.Apply] does the work that is due, [Engine.Run] does the rest when it becomes
// due, and programs without Run call [Engine.Settle] or [Engine.Finish]. A program stops by ending
// the context of Run, which leaves the kernel as it is; one that wants everything done before calls
// Finish first.
//
// Many programs can share one instance, each with services of owners of its own: see [Parts].
//
//	State ─resolve─► Table ─diff─► ChangeSet ─► Backend ─► kernel
//	                   ▲                                     │
//	                   └──────────────── observe ◄───────────┘
package dataplane
