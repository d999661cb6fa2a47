// Package backends is for people who write a backend: a [Backend] keeps the services of one
// instance in one mechanism of a kernel. Programs that only use backends need package dataplane,
// and the errors of this package.
//
// An engine resolves states, compares tables, retries, and decides when to read. So a backend has
// only to translate a table, which contains all decisions:
//
//   - Check refuses what the mechanism cannot express, with an [UnsupportedError] for each field.
//   - Commit writes a change set, in one transaction if the mechanism has them. It fails with
//     kernelerr.ErrConflict if the kernel does not hold what the changes begin from.
//   - Observe reads the kernel as a table. Objects of the instance that no table can express are
//     drift, which the next commit repairs. Foreign objects stay.
//   - Integrity says cheaply whether another program wrote since then.
//   - Plan prints what Commit would send.
//
// Begin with these and a [Candidate]; package memory is the smallest example. Then run the
// conformance suite of package dataplanetest, which sends packets and compares each fate with the
// model. Add the optional interfaces as the mechanism needs them: a [Locker] if several programs
// write one instance, a [Settler] if endpoints drain in the mechanism, a [Watcher] if the
// kernel's objects depend on addresses or links, a [Blamer] if the kernel tells who wrote, a
// [PartReader] if reading the services of one owner is cheaper than reading all, and [OmitsPools]
// if the kernel has no place for some pools.
//
// A pool says how to choose among its endpoints: [servicemodel.Scheduler.Split] tells its scheduler
// from the options. Each endpoint has a weight, and [servicemodel.Pool.Shares] has the shares that
// the suite holds a backend against. The tables of the schedulers that hash the client are made by
// [servicemodel.Pool.Maglev] and [servicemodel.Pool.UnitsOf]: a backend that uses them moves few
// clients when endpoints come and go. Refuse all other schedulers, with [FieldScheduler].
// examples/userspace is a backend without the kernel, in a module of its own.
//
// Errors of the kernel match the sentinels of package kernelerr.
package backends
