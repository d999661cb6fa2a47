// Package flows keeps the conntrack table in sync with services: no packet is sent to a removed
// endpoint.
//
// Pass a [Keeper] to an engine. It works with every backend:
//
//	table, err := conntrack.Open(nil)
//	…
//	keeper, err := flows.New(table, nil)
//	…
//	engine := dataplane.New(backend, &dataplane.Config{Flows: keeper})
//
// # What is stale
//
// After each change, the keeper derives from the change alone whether there may be stale flows:
// flows to a destination to which no new flow would be sent. It deletes exactly these flows in one
// pass over the table. If there cannot be stale flows, it does not read the table.
//
// UDP flows are stale
//
//   - if their endpoint no longer serves the frontend to which they were sent: because it was
//     removed, stopped serving, has a different port, or is excluded by the service's policies. An
//     endpoint that terminates but still serves keeps its flows as long as it serves, see below;
//   - if their frontend was removed, or lost its last endpoint;
//   - if they started when the frontend had no endpoint or did not exist, so that nothing
//     translated them.
//
// Masquerading does not matter, and neither does the address at which they reached the service.
// Some flows look stale but are not: flows to a different port, flows to a node port's number at an
// address that is not the node's, and flows directly to a pod.
//
// If untranslated flows were deleted, or if a frontend gets its first endpoints, the keeper
// searches again a moment later: an answer in flight can create a new flow, and conntrack then
// treats all further packets of the client as replies of that flow. So [Keeper.Settle] must be
// called when it is due, as the engine's Run does. The work is complete when Settle returns 0.
//
// The duration of a pass over the table grows with the number of flows on the machine: half a
// second for a million.
//
// # Connections to removed endpoints
//
// TCP and SCTP connections to a removed endpoint are subject to a policy
// ([servicemodel.ConnectionPolicy]). [Config] contains the policy for all services, and a service
// can have its own policy:
//
//   - leave, the default: they continue as long as both peers keep them open;
//   - drain: they may continue for some time after the removal, and are then cut;
//   - cut: they are cut at once.
//
// To cut a TCP connection, the keeper resets both ends, so that the client reconnects at once
// ([conntrack.Table.Clean]). To cut an SCTP connection, it deletes the flow. The same policy limits
// the time that a terminating endpoint keeps its UDP flows: with leave, as long as it serves; with
// drain, at most the drain time; with cut, not at all. Connections to a removed frontend are
// treated like connections to removed endpoints. An endpoint that comes back keeps its flows. No
// policy outlives [dataplane.Engine.Cleanup].
//
// # Restarts
//
// The keeper derives changes from the kernel's contents. So after a restart, a program that adopts
// the kernel's state and applies a change cleans up as if it had never stopped. But if it stopped
// between a commit and the cleanup, it cannot know the stale flows of that commit. So on its first
// pass, a keeper checks all UDP frontends, and all frontends whose connections are to be cut, for
// flows that are certainly stale: flows to an existing frontend that no longer has their endpoint.
// Other flows are kept. This takes one pass over the table, or none if there is no such frontend.
// In this case, the keeper cannot find flows to a frontend that the last commit removed: they last
// as long as their clients keep sending.
//
// The remaining drain time of connections is not stored: a new keeper searches for these
// connections once, and their drain time starts again.
//
// If a policy was removed together with its service, only a keeper that saw the service can apply
// it. Any other keeper applies the policy for all services.
package flows
