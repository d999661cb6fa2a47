// Package leastconn prefers the endpoints with the fewest open connections where the kernel does
// not count them: under the schedulers lc and wlc on nftables. A [Follower] counts connections, and
// feeds shares back ([servicemodel.Endpoint.Share]). Without a follower, endpoints are chosen at
// random; under wlc, by weight.
//
//	follower, err := leastconn.NewFollower(engine, nil)
//	…
//	go follower.Run(ctx)
//	…
//	follower.Set(state)
//
// If a program also uses a follower of package checks or silence, which removes endpoints from
// states, that follower must pass its states to this follower. IPVS counts connections itself: with
// ipvs, a follower only passes states on.
//
// # Counting
//
// The follower dumps the translated connections of the conntrack table ten times within the mean
// lifetime of a connection, but at least every 5 s and at most ten times a second, and uses at most
// 5 % of a CPU. With a table of 262,144 buckets, a dump takes some 20 ms of a CPU, however few
// connections there are, so dumps are at least 0.4 s apart there. The follower counts the
// connections of an endpoint over all services together: TCP connections that at least one side has
// not closed, and UDP and SCTP flows as long as the kernel remembers them. It estimates the
// lifetime of connections from the share of counted connections that are still open at the next
// count.
//
// # Shares
//
// An endpoint with more open connections than average, relative to its weight, gets fewer new
// connections: for each percent above the average, up to ten percent less. Its share stays between
// a tenth and twice its fair share. The gain is life/(2·period), so a late count does not cause
// oscillation. Shares are whole numbers of units, at least 64 units in all and at least six for
// each endpoint, and an update moves at most an eighth of the units. Weights of endpoints may also
// change ten times a second: shares follow them in such steps. If most connections start and end
// between two counts, endpoints are chosen at random.
//
// When a program ends, the last shares stay in the kernel. When it starts again, it continues with
// them. If a state has no shares, shares in the kernel do not count as a difference, so plans and
// repairs do not remove them.
package leastconn
