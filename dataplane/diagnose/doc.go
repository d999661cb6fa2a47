// Package diagnose checks everything that a client's connection to a service needs, from the model
// to the wire, and reports the first fault.
//
//	report, err := diagnose.Run(ctx, &diagnose.Config{Table: held, Here: here, From: pod,
//		To: servicemodel.FrontendKey{…}})
//	fmt.Print(report)
//
// [Run] connects from the client's network namespace, so its packets take the same path as a real
// client's packets. It traces one connection with package livetrace to see which rules its packets
// match. Then it connects to each endpoint of the service, also through the service's address. For
// this, it adds flows to the conntrack table that direct the packets of its own sockets to the
// endpoint. Rules, pools and other clients' connections do not change. IPVS ignores such flows:
// there, Run connects to the endpoints' own addresses.
//
// To each TCP endpoint that answers, it sends a full-size segment whose data the endpoint has
// already acknowledged. TCP acknowledges the segment again, and the listening program does not see
// it. This tests only the path to the endpoint, not the path back.
package diagnose
