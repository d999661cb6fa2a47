// Package flows keeps the conntrack table in step with services: no packet goes to a backend that
// is gone.
//
// A [Keeper] is given to an engine, and works with every backend:
//
//	table, err := conntrack.Open(nil)
//	…
//	keeper, err := flows.New(table, nil)
//	…
//	engine := dataplane.New(backend, &dataplane.Config{Flows: keeper})
//
// # What is stale
//
// After each change the keeper works out, from the change alone, whether it can have left a flow
// that goes where no new one would, and deletes exactly those in one pass over the table. If there
// can be none, it does not look.
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
// A flow to another port, to a node port's number at an address that is not the node's, or straight
// to a pod is never stale, however much it looks alike.
//
// Where untranslated flows were deleted, or a frontend has its first endpoints, the keeper looks
// again a moment later: an answer that was under way can begin a flow of its own, in which all that
// the client sends passes for answers. So [Keeper.Settle] has to be called in time, as the engine's
// Run does; until it has returned 0, not all is done.
//
// A pass over the table takes the longer the more flows there are on the machine, half a second for
// a million. A program that runs for long can run a mirror of the table (package
// conntrack/mirror) and give it to the keeper, in [Config.Clean]: it follows events and finds UDP
// flows without a pass, and connections that are to be cut if it is told to note their protocols,
// too.
//
// # Connections to endpoints that go
//
// TCP and SCTP connections to an endpoint that left are subject to a policy
// ([servicemodel.ConnectionPolicy]), one for all services in [Config] and one for each service that
// wants its own:
//
//   - leave, the default: they go on, as long as both ends live;
//   - drain: they may go on for some time from when the endpoint left, and then are cut;
//   - cut: they are cut at once.
//
// To cut a connection is to reset both of its ends, so that the client connects again at once
// ([conntrack.Table.Cut]); for SCTP, to delete its flow. The same policy says how long an endpoint
// that terminates may keep its UDP flows: as long as it serves, at most as long as it is drained,
// or not at all. Connections by a frontend that is gone are treated like those to endpoints that
// left. An endpoint that comes back keeps what it has.
//
// # Restarts
//
// The kernel is what is compared with, so a program that starts, adopts what is there and applies a
// change cleans up as one that ran all along. What it cannot know is what it missed if it was
// stopped between a commit and the cleaning after it. So the first time, a keeper looks at all UDP
// frontends, and at those whose connections are to be cut, for flows that are stale beyond doubt:
// sent to a frontend that is there, and going to an endpoint that it does not have. Flows that are
// right survive. It costs one pass over the table, and none if there is no such frontend. What it
// cannot find after such a stop is flows to a frontend that was removed by the commit before: they
// last as long as their clients keep sending.
//
// The time that connections have left to be drained is not kept: a new keeper looks for them once,
// and their time begins anew.
//
// A policy that was removed together with its service is known to a keeper that saw the service.
// Another one goes by the policy for all.
package flows
