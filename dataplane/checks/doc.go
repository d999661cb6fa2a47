// Package checks checks the health of endpoints. Endpoints that fail get no new connections.
//
// A program with a whole state uses a [Follower]. The follower passes the state on to the engine,
// and marks the endpoints that fail as not ready:
//
//	follower, err := checks.NewFollower(func(s servicemodel.State) { engine.Set(s) }, nil)
//	…
//	go follower.Run(ctx)
//	…
//	err = follower.Set(state, map[servicemodel.Name][]checks.Check{
//		web: {{Type: checks.HTTP, Path: "/healthz"}}}, nil)
//
// A program that derives its states from the verdicts itself uses a [Monitor], which checks
// targets, reports changes, and knows no services. A [Target] is a [Check] of an address.
//
// # Verdicts
//
// The first answer of an unknown target decides its state. After that, a target is down after Fall
// failures in a row, and up again after Rise successes in a row. A target that flaps faster than
// that keeps its state. After an answer that contradicts the state, the next check begins after
// Retry instead of Interval. With an interval of 10 s and a retry after 1 s, three failures take
// two seconds longer than one failure.
//
// # Load
//
// Jitter shortens each interval by a random time, so that checks spread. A monitor checks a bounded
// number of targets at a time. A target that waits for its turn is checked late, but does not fail:
// the timeout begins with the connection. Each check has a connection of its own, like a client's.
package checks
