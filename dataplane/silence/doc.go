// Package silence notices endpoints that do not answer new connections, and takes them out until
// they answer again. A node that fails keeps its endpoints in the state of a cluster for 40 s or
// more; with a follower, new connections go elsewhere within a second.
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
// While there is no service to watch, it follows no events.
//
// A program that also checks endpoints gives the states of its checks.Follower to this follower: an
// endpoint takes connections while neither follower has taken it out.
//
// # Evidence
//
// The follower looks up each new TCP connection to a service 200 ms after its first packet, in the
// conntrack table: by then, a live endpoint has answered. If there are more than 500 new
// connections a second, it looks up a random sample of them. It misses a connection only if events
// were lost, and draws no conclusion from that. A refused connection counts as unanswered. The
// follower learns nothing about UDP, SCTP and ranges of ports, nor about connections whose first
// packet the node did not send on, for example because there is no route.
//
// # Ejection
//
// An endpoint is suspect if its newest connections got no answer, and
//
//   - lost packets do not explain their number: two are enough in a network that loses no packets,
//     and more are needed if connections had no answer before;
//   - they came from at least two clients. All connections of the client with the most connections
//     count as one. A client that no endpoint answers does not count at all;
//   - since the first of these connections, another endpoint of the service answered a connection.
//
// Then the follower itself opens four connections to the endpoint, because one may be lost, and one
// connection to another endpoint that answers clients. It does so at most once a second. It ejects
// the endpoint only if the other endpoint answers and this endpoint does not. So no client can make
// an endpoint look silent, whatever it sends, and an endpoint that answers only this node stays in.
// An endpoint that did not answer promptly before, because it is new or slow, is given 3 s instead
// of 200 ms, for connections and for the question.
//
// At most a share of the endpoints of a pool ([Config]) is out at a time, and one endpoint of each
// pool always stays. If endpoints are removed from the state and too many of the rest are out, the
// endpoints that have been out longest are let in.
//
// # Return
//
// After a pause, the follower asks the endpoint every second, and lets it in when it answers. The
// pause is 1 s, and doubles with each relapse, up to a minute. An endpoint that answers no question
// is let in on trial after 30 pauses, in case it answers clients, but not this node. If the service
// has a slow start, a returning endpoint begins with it.
//
// In the state that the engine gets, an ejected endpoint is not ready. Its open connections stay,
// unless the service's policy for connections to removed endpoints says otherwise. A program that
// is killed leaves its last state in the kernel. If the next process knows which endpoints were out
// ([Config].Earlier), it lets in the endpoints that answer, and the other endpoints stay out.
// Otherwise all endpoints are in when it starts, and the endpoints that are still silent are
// ejected again.
//
// # IPVS
//
// With [Config.IPVS] the package also works with IPVS, whose flows conntrack knows by the reply
// that they expect (net.ipv4.vs.conntrack, which kernlb's backend sets). Services with direct
// forwarding or tunnels are not watched: their answers do not pass this node.
package silence
