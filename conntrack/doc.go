// Package conntrack lists, follows, deletes and cuts the flows in the kernel's connection tracking
// table. It uses netlink, works in any network namespace, and can be used without the other
// packages of kernlb. Start with [Open], which opens the [Table]. Package dataplane/flows connects
// it to the services of an engine, and package tuning sets the table's limits and timeouts.
//
// # Stale flows
//
// The kernel chooses the endpoint of a flow once, and conntrack remembers the choice as long as
// packets arrive. So a UDP client that keeps sending reaches its old endpoint forever. After a
// change of services, describe the change, and clean the table:
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
// The matcher is pure and exact: [Frontend] defines which flows are stale. Flows begin and end
// between reading the table and deleting from it. [Table.Delete] deletes either the flow that was
// read, or nothing.
//
// The time of a pass over the table grows with the number of flows on the machine.
//
// # Looking
//
// [Table.Flows] lists flows as a sequence, without keeping them in memory. [Table.Follow] returns
// events, and [Table.Usage] reports how full the table is. Package timo converts flows to the type
// of github.com/ti-mo/conntrack and back.
package conntrack
