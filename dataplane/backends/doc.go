// Package backends defines the interfaces of a backend, for authors of backends. A [Backend] keeps
// the services of one instance in one mechanism of the kernel, such as nf_tables. Programs that
// only use backends need package dataplane, and from this package only the errors.
//
// An engine resolves states, compares tables, retries, and decides when to read. So a backend only
// has to translate a table, which contains all decisions:
//
//   - Check refuses fields that the mechanism cannot express, with an [UnsupportedError] for each.
//   - Commit writes a change set, in one transaction if the mechanism has transactions. It fails
//     with kernelerr.ErrConflict if the table in the kernel is not the one from which the changes
//     start.
//   - Observe reads the kernel as a table. Objects of the instance that no table can express are
//     drift, which the next commit repairs. Foreign objects are not touched.
//   - Integrity checks cheaply whether another program has written since then.
//   - Plan prints the messages that Commit would send.
//
// Start with these methods and a [Candidate]; package memory is the smallest example. Then run the
// conformance suite of package dataplanetest, which sends packets and compares the fate of each
// packet with the model. Add the optional interfaces that the mechanism needs: a [Locker] if
// several programs write to one instance, a [Settler] if endpoints drain in the mechanism, a
// [Watcher] if the kernel's objects depend on addresses or links, a [Blamer] if the kernel reports
// which program wrote, a [PartReader] if reading one owner's services is cheaper than reading
// everything, and [OmitsPools] if the kernel cannot store some pools.
//
// A pool's scheduler chooses among its endpoints: [servicemodel.Scheduler.Split] separates the
// scheduler from its options. Each endpoint has a weight, and [servicemodel.Pool.Shares] returns
// the shares of connections that the suite expects. [servicemodel.Pool.Maglev] and
// [servicemodel.Pool.UnitsOf] compute the tables of the schedulers that hash the client: a backend
// that uses them moves few clients when endpoints are added and removed. Refuse schedulers that the
// mechanism lacks, with [FieldScheduler]. examples/userspace is a backend that does not use the
// kernel, in a module of its own.
//
// Errors of the kernel match the sentinels of package kernelerr.
package backends
