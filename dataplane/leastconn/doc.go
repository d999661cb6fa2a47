// Package leastconn prefers the endpoints that have the fewest open connections, where the kernel
// counts none: under the schedulers lc and wlc on nftables. A [Follower] counts connections, and
// feeds shares back ([servicemodel.Endpoint.Share]). Without a follower, endpoints are chosen at
// random, by weight under wlc.
//
//	follower, err := leastconn.NewFollower(engine, nil)
//	…
//	go follower.Run(ctx)
//	…
//	follower.Set(state)
//
// A follower of package checks or silence, which takes endpoints out of states, gives its states to
// this follower. IPVS counts connections itself: on ipvs, a follower only passes states on.
//
// # Counting
//
// The follower dumps the translated connections of the conntrack table, ten times in the mean life
// of a connection, at least every 5 s and at most ten times a second, and takes at most 5 % of a
// CPU. A dump of a table of 262,144 buckets takes some 20 ms of a CPU, however few connections it
// has, so dumps are at least 0.4 s apart there. The connections of an endpoint count for all
// services together: TCP connections that are not closed by both sides, and flows of UDP and SCTP
// while the kernel remembers them. The follower estimates the lifetime of connections from the
// share of counted connections that are still open at the next count.
//
// # Shares
//
// An endpoint with more open connections for its weight than the mean gets fewer new connections:
// for each percent above the mean, up to ten percent less. Its share is always between a tenth of
// its fair share and twice its fair share. The gain is life/(2·period), so a late count does not
// make the loads swing. Shares are whole units, at least 64 and at least six for each endpoint, and
// an update moves at most an eighth of them. Weights of endpoints may change ten times a second,
// too: shares follow in such steps. If most connections begin and end between two counts, endpoints
// are chosen at random.
//
// A program that ends leaves the last shares in the kernel. When it starts again, it continues with
// these shares. Shares in the kernel do not count as a difference from a state without shares, so
// plans and repairs leave them alone.
package leastconn
