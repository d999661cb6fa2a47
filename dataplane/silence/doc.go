// Package silence detects endpoints that do not answer new connections, and ejects them until they
// answer again. When a node fails, its endpoints remain in the state of a cluster for 40 s or more;
// with a follower, new connections use other endpoints within a second.
//
//	follower, err := silence.NewFollower(func(s servicemodel.State) { engine.Set(s) },
//		&silence.Config{Table: func() *servicemodel.Table { return engine.Status().Held }})
//	…
//	go follower.Run(ctx)
//	…
//	follower.Set(state)
//
// The follower watches all services, except those whose SilentEndpoints is
// [servicemodel.SilentStay], or, with [Config.Asked], only those with [servicemodel.SilentEject].
// While there is no service to watch, it does not listen for events.
//
// A program that also checks endpoints passes the states of its checks.Follower to this follower:
// an endpoint takes connections unless one of the two followers has removed it.
//
// # Evidence
//
// For each new TCP connection to a service, the follower looks at the conntrack table 200 ms after
// the first packet: by then, a live endpoint has answered. If there are more than 250 new
// connections per second, it takes samples of a dozen. It misses a connection only if events were
// lost, and then draws no conclusion. A refused connection counts as unanswered. The follower does
// not detect silent endpoints of UDP, SCTP and ranges of ports, and ignores connections whose first
// packet the node did not forward, for example because there is no route.
//
// # Ejection
//
// An endpoint is suspect if its newest connections got no answer, and if
//
//   - lost packets do not explain their number: two connections are enough in a network that loses
//     no packets, and more are needed if unanswered connections occurred before;
//   - they came from at least two clients. All connections of the client with the most connections
//     count as one connection. A client that gets no answer from any endpoint does not count;
//   - another endpoint of the service has answered a connection since the first of these
//     connections.
//
// The follower itself then opens four connections to the endpoint, because one may be lost, and one
// connection to another endpoint that answers clients. It does so at most once a second. It ejects
// the endpoint only if the other endpoint answers and this endpoint does not. So a client cannot
// make an endpoint look silent, whatever it sends, and an endpoint that answers only this node is
// not ejected. An endpoint that did not answer promptly before, because it is new or slow, gets 3 s
// instead of 200 ms, both for clients' connections and for the follower's own.
//
// At most a fraction of a pool's endpoints ([Config].MaxShare) is ejected at a time, and one
// endpoint of each pool is never ejected. If endpoints are removed from the state and too many of
// the rest are ejected, the endpoints that were ejected first are let back in.
//
// # Return
//
// After a pause, the follower tries the endpoint every second, and lets it back in when it answers.
// The pause is 1 s, and doubles with each relapse, up to a minute. An endpoint that never answers
// the follower is let back in on trial after 30 pauses, because it may answer clients but not this
// node. If the service has a slow start, the endpoint then starts slowly.
//
// In the state that the engine gets, an ejected endpoint is not ready. Its open connections
// continue, unless the service's policy for connections to removed endpoints says otherwise. If a
// program is killed, its last state remains in the kernel. If the next process knows which
// endpoints were ejected ([Config].Earlier), it lets in the endpoints that answer, and the others
// remain ejected. Otherwise, it starts without ejected endpoints, and ejects the endpoints that are
// still silent again.
//
// # IPVS
//
// With [Config.IPVS], the package also works with IPVS: conntrack has the flows of IPVS, and the
// reply that they expect shows the endpoint (net.ipv4.vs.conntrack, which kernlb's backend sets).
// Services with direct forwarding or tunnels are not watched: their answers do not pass through
// this node.
package silence
