// Package dataplane applies desired states to a kernel through a backend.
//
//	backend, err := nftables.New(nil) // or of another package; memory.New(nil) in a test
//	…
//	engine := dataplane.New(backend, nil)
//	result, err := engine.Apply(ctx, state)
//	…
//	fmt.Print(result.Changes) // what was written, line by line
//	for _, r := range result.Refused {
//		fmt.Println(r) // a service that was left out, and why
//	}
//
// The [Engine] drives the pipeline of kernlb. It resolves a state, compares it with what the kernel
// holds, and hands the difference to a [backends.Backend], which writes it. The engine reads the
// kernel when it starts, after another program changed something, and after an error. So it always
// compares the state with the kernel's true contents.
//
// One bad service does not hold back the other services. A service is left out if it is invalid, if
// the backend cannot express it, or if it collides with a foreign object in the kernel. The
// [Result] names it; see [Engine.Apply].
//
// There are two ways to use an engine, and they can be combined. [Engine.Apply] makes the kernel
// hold a state, and returns when it does. A long-running program calls [Engine.Run] in a goroutine,
// and [Engine.Set] whenever the desired state changes. Set does not wait. Run keeps the kernel at
// the newest state: it retries after failures and repairs changes by other programs. Set, Apply and
// [Engine.Cleanup] each replace all earlier requests, so no order of calls brings back an older
// state. [Engine.Wait] waits for a state. [Engine.Status] returns the desired state, the kernel's
// contents and the last failure, at any time. Observers ([Engine.Subscribe]) get each [Event].
//
// Some work is left for later: the removal of drained endpoints and the deletion of stale flows.
// [Engine.Apply] does the work that is due, and [Engine.Run] does the rest when it becomes due.
// Programs without Run call [Engine.Settle] or [Engine.Finish]. A program stops by ending the
// context of Run, which leaves the kernel as it is. If all work must be done by then, it calls
// Finish first.
//
// Many programs can share one instance, each with services of its own owners: see [Parts].
//
//	State ─resolve─► Table ─diff─► ChangeSet ─► Backend ─► kernel
//	                   ▲                                     │
//	                   └──────────────── observe ◄───────────┘
package dataplane
