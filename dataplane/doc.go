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
// The [Engine] drives the pipeline of kernlb. It resolves a state, compares it with the kernel's
// contents, and passes the difference to a [backends.Backend], which writes it. The engine reads
// the kernel when it starts, after another program has changed something, and after an error. So it
// always compares the state with the kernel's true contents.
//
// One bad service does not affect the other services. A service is left out if it is invalid, if
// the backend cannot express it, or if it collides with a foreign object in the kernel. The
// [Result] names it; see [Engine.Apply].
//
// There are two ways to use an engine, and they can be combined. [Engine.Apply] makes the kernel
// match a state, and returns when it does. A long-running program calls [Engine.Run] in a
// goroutine, and [Engine.Set] whenever the desired state changes. Set returns at once. Run keeps
// the kernel in sync with the newest state: it retries after failures and repairs changes by other
// programs. Set, Apply and [Engine.Cleanup] each supersede all earlier requests, so an older state
// never comes back. [Engine.Wait] waits for a state. [Engine.Status] returns the desired state, the
// kernel's contents and the last failure, at any time. Observers ([Engine.Subscribe]) receive each
// [Event].
//
// A commit leaves some work for later: the removal of drained endpoints and the deletion of stale
// flows. [Engine.Apply] does the work that is due, and [Engine.Run] does the rest when it becomes
// due. Programs without Run call [Engine.Settle] or [Engine.Finish]. To stop, a program cancels the
// context of Run, which does not change the kernel. To complete all work first, it calls Finish
// before that.
//
// Many programs can share one instance, each with the services of its own owners: see [Parts].
//
//	State ─resolve─► Table ─diff─► ChangeSet ─► Backend ─► kernel
//	                   ▲                                     │
//	                   └──────────────── observe ◄───────────┘
package dataplane
