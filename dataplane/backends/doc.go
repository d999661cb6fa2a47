// Package backends defines the interfaces of a backend, for people who write one. A [Backend] keeps
// the services of one instance in one mechanism of a kernel. Programs that only use backends need
// package dataplane, and the errors of this package.
//
// An engine resolves states, compares tables, retries, and decides when to read. So a backend only
// translates a table, which contains all decisions:
//
//   - Check refuses fields that the mechanism cannot express, with an [UnsupportedError] for each.
//   - Commit writes a change set, in one transaction if the mechanism has them. It fails with
//     kernelerr.ErrConflict if the kernel does not hold the table that the changes begin from.
//   - Observe reads the kernel as a table. Objects of the instance that no table can express are
//     drift, which the next commit repairs. Foreign objects stay.
//   - Integrity says cheaply whether another program wrote since then.
//   - Plan prints the messages that Commit would send.
//
// Begin with these and a [Candidate]; package memory is the smallest example. Then run the
// conformance suite of package dataplanetest, which sends packets and compares each fate with the
// model. Add the optional interfaces as the mechanism needs them: a [Locker] if several programs
// write one instance, a [Settler] if endpoints drain in the mechanism, a [Watcher] if the kernel's
// objects depend on addresses or links, a [Blamer] if the kernel reports which program wrote, a
// [PartReader] if reading the services of one owner is cheaper than reading all, and [OmitsPools]
// if the kernel cannot store some pools.
//
// A pool's scheduler chooses among its endpoints: [servicemodel.Scheduler.Split] separates the
// scheduler from its options. Each endpoint has a weight, and [servicemodel.Pool.Shares] returns
// the shares that the suite expects of a backend. [servicemodel.Pool.Maglev] and
// [servicemodel.Pool.UnitsOf] compute the tables of the schedulers that hash the client: a backend
// that uses them moves few clients when endpoints are added and removed. Refuse all other
// schedulers, with [FieldScheduler]. examples/userspace is a backend without the kernel, in a
// module of its own.
//
// Errors of the kernel match the sentinels of package kernelerr.
package backends
