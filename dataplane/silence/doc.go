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
// A program that also checks endpoints gives the states of its checks.Follower to this one: an
// endpoint takes connections while neither has taken it out.
//
// # Evidence
//
// The follower looks up each new TCP connection to a service 200 ms after its first packet, in the
// conntrack table: by then, a live endpoint has answered. If there are more than 500 new
// connections a second, it looks up a random sample of them. It misses a connection only if events
// were lost, and draws no conclusion from that. A refused connection counts as one without an
// answer. It learns nothing about UDP, SCTP, ranges of ports, nor about connections whose first
// packet the node did not send on, such as one without a route.
//
// # Ejection
//
// An endpoint is suspect if its newest connections got no answer, and
//
//   - they are too many to be explained by lost packets: two in a network that loses none, and more
//     if connections had no answer before;
//   - they came from at least two clients. All connections of the client that has most count as
//     one. A client that no endpoint answers does not count at all;
//   - another endpoint of the service answered a connection meanwhile.
//
// Then the follower makes four connections to the endpoint itself, because one may be lost, once a
// second at most, and one to another endpoint that answers clients. It ejects the endpoint only if
// the other one alone answers. So no client can make an endpoint look silent, whatever it sends,
// and an endpoint that answers only this node stays in. An endpoint that did not answer promptly
// before, because it is new or slow, is given 3 s instead of 200 ms, for connections and for the
// question.
//
// At most a share of the endpoints of a pool ([Config]) is out at a time, and one endpoint of each
// pool always stays. If endpoints leave the state, those that have been out longest come back, as
// far as that demands.
//
// # Return
//
// After a pause, the follower asks the endpoint every second, and lets it in when it answers.
// The pause is 1 s, and doubles with each relapse, up to a minute. An endpoint that answers no
// question is let in on trial after 30 pauses, in case it answers clients, but not this node. The
// slow start of a service holds for endpoints that return.
//
// In the state that the engine gets, an ejected endpoint is not ready. Its open connections stay,
// unless the service's policy for connections to removed endpoints says otherwise. A program that
// is killed leaves its last state in the kernel. If the next process knows which endpoints were out
// ([Config].Earlier), it lets those in that answer, and the others stay out. Otherwise all are in
// when it starts, and those that are still silent are ejected again.
//
// # IPVS
//
// With [Config.IPVS] the package also works with IPVS, whose flows conntrack knows by the reply
// that they expect (net.ipv4.vs.conntrack, which kernlb's backend sets). Services with direct
// forwarding or tunnels are not watched: their answers do not pass this node.
package silence
