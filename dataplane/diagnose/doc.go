// Package diagnose checks everything that a client's connection to a service needs, from the model
// to the wire, and names the first fault.
//
//	report, err := diagnose.Run(ctx, &diagnose.Config{Table: held, Here: here, From: pod,
//		To: servicemodel.FrontendKey{…}})
//	fmt.Print(report)
//
// [Run] connects as a client would, from the network namespace of the client, so its packets take
// the path of a client's packets. It follows one connection with package livetrace, to see which
// rules the packets meet. Then it connects to each endpoint of the service, also through the
// service's address. For that it adds flows to the conntrack table that send the packets of its own
// sockets to the endpoint. So rules, pools and other clients' connections stay as they are. With
// IPVS, which does not obey such flows, it connects to the endpoints' own addresses.
//
// To each TCP endpoint that answers it sends a full-size segment with data that the endpoint has
// already acknowledged. TCP answers the segment with an acknowledgement, and the listening program
// does not see it. This tests only the path to the endpoint, and not the path back.
package diagnose
