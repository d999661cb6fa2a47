// Package conntrack finds, follows, deletes and cuts the flows in the kernel's connection tracking
// table. It speaks netlink, works in any network namespace, and needs nothing of the other packages
// of kernlb. [Open] is first: it opens the [Table]. Package flows ties it to the services of an
// engine, package tuning sets the table's limits and timeouts.
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
// The matcher is pure and exact: [Frontend] says which flows it takes for stale. Between the look
// at the table and the deletion, flows come and go; what is deleted is the flow that was seen, or
// nothing ([Table.Delete]).
//
// A pass over a table takes the longer the more flows there are on the machine. In large tables,
// package mirror finds the stale ones without ([CleanOptions.Index]).
//
// # Looking
//
// [Table.Flows] lists flows as a sequence that does not hold them in memory; [Where] and [CountBy]
// work on it. [Table.Lookup] asks for single flows, [Table.Follow] brings events, and [Table.Usage]
// says how full the table is. Package timo turns flows into those of github.com/ti-mo/conntrack and
// back.
//
// # Cutting TCP connections
//
// [Table.Cut] ends connections to endpoints that are gone so that clients connect again at once,
// and says how.
package conntrack
