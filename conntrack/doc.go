// Package conntrack finds, follows, deletes and cuts the flows in the kernel's connection tracking
// table, and sets its limits. It speaks netlink, works in any network namespace, and needs nothing
// of the other packages of kernlb. Package conntrack/flows ties it to the services of an engine.
//
// # Stale flows
//
// The kernel decides once where a flow goes, and conntrack remembers it as long as packets come. A
// UDP client that keeps sending reaches its old endpoint for ever. After a change of services,
// describe what changed, and let the table be cleaned:
//
//	m, err := conntrack.NewMatcher(conntrack.Change{
//		Frontends: []conntrack.Frontend{{
//			Key:          conntrack.FrontendKey{Addr: vip, Port: 53, Protocol: conntrack.UDP},
//			Endpoints:    stillServing,
//			Untranslated: len(stillServing) > 0,
//		}},
//	})
//	…
//	result, err := table.Clean(ctx, m, conntrack.CleanOptions{})
//
// The matcher is pure and exact: see [Frontend] for what it takes for stale. Between the look at the
// table and the deletion, flows come and go; what is deleted is the flow that was seen, or nothing
// ([Table.Delete]).
//
// # Large tables
//
// A pass over a table costs as much as there are flows on the machine. A [Mirror] knows beforehand
// where flows go, and cleans at the cost of those that are stale:
//
//	mirror, err := conntrack.NewMirror(table, conntrack.MirrorOptions{})
//	…
//	go func() { done <- mirror.Run(ctx) }()
//	…
//	result, err := mirror.Clean(ctx, m, conntrack.CleanOptions{})
//
// Among a million flows, it deletes 250 in 18 ms, most of which are the wait for packets under way,
// where a pass takes 460 to 950 ms.
//
// # Looking
//
// [Table.Flows] lists flows as a sequence that does not hold them in memory; [Where] and [CountBy]
// work on it. [Table.Follow] brings events. [Table.Usage] says how full the table is.
//
// # Cutting TCP connections
//
// [Table.Cut] ends connections to endpoints that are gone so that clients connect again at once,
// and says how.
//
// # Tuning
//
// [Table.PlanTuning] compares the kernel's limits and timeouts with those wanted,
// [Table.ApplyTuning] sets them.
package conntrack
