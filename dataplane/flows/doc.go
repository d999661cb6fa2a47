// Package flows keeps the conntrack table in step with services: no packet goes to a backend that
// is gone.
//
// Give a [Keeper] to an engine. It works with every backend:
//
//	table, err := conntrack.Open(nil)
//	…
//	keeper, err := flows.New(table, nil)
//	…
//	engine := dataplane.New(backend, &dataplane.Config{Flows: keeper})
//
// # What is stale
//
// After each change the keeper works out, from the change alone, whether it can have left stale
// flows: flows that go where no new one would. It deletes exactly those in one pass over the table.
// If there can be none, it does not read the table.
//
// UDP flows are stale
//
//   - if they go to an endpoint that left the frontend they were sent to: because it is gone,
//     stopped serving, has another port, or may not be used under the service's policies any more.
//     An endpoint that terminates but still serves keeps its flows as long as it serves, see below;
//   - if their frontend is gone, or lost its last endpoint;
//   - if they began when the frontend had no endpoint or did not exist, so that nothing translated
//     them.
//
// It does not matter whether they were masqueraded, nor by which address they reached the service.
// These are never stale, however much they resemble stale ones: a flow to another port, to a node
// port's number at an address that is not the node's, or directly to a pod.
//
// If untranslated flows were deleted, or if a frontend has its first endpoints, the keeper searches
// again a moment later: an answer that was under way can begin a new flow, and conntrack takes all
// further packets of the client for replies in it. So [Keeper.Settle] must be called in time, as
// the engine's Run does. Until it has returned 0, the work is not complete.
//
// The time of a pass over the table grows with the number of flows on the machine: half a second
// for a million.
//
// # Connections to removed endpoints
//
// TCP and SCTP connections to an endpoint that left are subject to a policy
// ([servicemodel.ConnectionPolicy]), one for all services in [Config] and one for each service that
// wants its own:
//
//   - leave, the default: they go on, as long as both ends live;
//   - drain: they may go on for some time from when the endpoint left, and then are cut;
//   - cut: they are cut at once.
//
// To cut a TCP connection, the keeper resets both of its ends, so that the client connects again at
// once ([conntrack.Table.Clean]). To cut an SCTP connection, it deletes the flow. The same policy
// says how long an endpoint that terminates may keep its UDP flows: as long as it serves, at most
// as long as it is drained, or not at all. If a frontend is gone, its connections are treated like
// those to endpoints that left. An endpoint that comes back keeps its flows.
//
// # Restarts
//
// Changes are computed from what the kernel holds. So a program that starts, adopts the kernel's
// state and applies a change cleans up like one that ran all along. But if it was stopped between a
// commit and the cleaning after it, it cannot know what it missed. So the first time, a keeper
// checks all UDP frontends, and those whose connections are to be cut, for flows that are certainly
// stale: they were sent to a frontend that exists, and go to an endpoint that it does not have.
// Right flows survive. This costs one pass over the table, and none if there is no such frontend.
// After such a stop, the keeper cannot find flows to a frontend that the commit before removed:
// they last as long as their clients keep sending.
//
// The time that connections have left to drain is not stored: a new keeper searches for them once,
// and their time begins again.
//
// If a policy was removed together with its service, only a keeper that saw the service knows it.
// Any other keeper uses the policy for all services.
package flows
