// Package checks checks the health of endpoints. Endpoints that fail get no new connections.
//
// A program that has a state begins with a [Follower]. It gives the engine the same state, in which
// the endpoints that fail are not ready:
//
//	follower, err := checks.NewFollower(func(s servicemodel.State) { engine.Set(s) }, nil)
//	…
//	go follower.Run(ctx)
//	…
//	err = follower.Set(state, map[servicemodel.Name][]checks.Check{
//		web: {{Type: checks.HTTP, Path: "/healthz"}}}, nil)
//
// A program that makes states by itself uses a [Monitor]: it asks targets, says what changes, and
// knows no services. A [Target] is a [Check] of an address.
//
// # Verdicts
//
// The first answer of an unknown target decides. After that, a target that is up goes down after
// Fall failures in a row, and comes up again after Rise successes in a row. A target that flaps
// faster than that keeps its state. After an answer that contradicts the state, the next check
// begins after Retry instead of Interval. With an interval of 10 s and a retry after 1 s, three
// failures take two seconds longer than one.
//
// # Load
//
// Jitter shortens each interval by a random time, so that checks spread. A monitor asks a bounded
// number of targets at a time. A target that waits for its turn is late, but not failed: the
// timeout begins with the connection. Each check has a connection of its own, like a client's.
package checks
