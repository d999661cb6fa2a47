// Package checks checks the health of endpoints. Endpoints that fail get no new connections.
//
// A program that has a complete state uses a [Follower]. The follower passes the state to the
// engine, and marks endpoints that fail as not ready:
//
//	follower, err := checks.NewFollower(func(s servicemodel.State) { engine.Set(s) }, nil)
//	…
//	go follower.Run(ctx)
//	…
//	err = follower.Set(state, map[servicemodel.Name][]checks.Check{
//		web: {{Type: checks.HTTP, Path: "/healthz"}}}, nil)
//
// A program that builds its states from the results itself uses a [Monitor], which checks targets
// and reports changes, and does not know services. A [Target] is a [Check] of an address.
//
// # Verdicts
//
// The first answer of an unknown target decides its state. After that, a target is down after Fall
// failures in a row, and up again after Rise successes in a row. Faster flapping does not change a
// target's state. After an answer that contradicts the state, the next check starts after Retry
// instead of Interval. With an interval of 10 s and a retry after 1 s, three failures take two
// seconds longer than one failure.
//
// # Load
//
// Jitter shortens each interval by a random time to spread the checks. A monitor checks a limited
// number of targets at a time. A target that waits for its turn is checked late, but does not fail
// because of the wait: the timeout starts with the connection. Each check opens its own connection,
// like a client.
package checks
