// Package diagnose walks what a client's connection to a service needs, from the model to the wire,
// and names the first thing that is wrong.
//
//	report, err := diagnose.Run(ctx, &diagnose.Config{Table: held, Here: here, From: pod,
//		To: servicemodel.FrontendKey{…}})
//	fmt.Print(report)
//
// [Run] connects as a client would, from the network namespace of the client, so the packets take
// the way that a client's packets take. It follows one connection with package livetrace, to see
// which rules it meets. Then it connects to each endpoint of the service, also through the
// service's address. For that it puts flows into the table of connections that send the packets of
// its own sockets to the endpoint. So rules, pools and other clients' connections stay as they are.
// With IPVS, which does not obey such flows, it connects to the endpoints' own addresses.
//
// To each TCP endpoint that answers it sends a full-size segment with data that the endpoint has
// already acknowledged. TCP answers it with an acknowledgement, and the program that listens does
// not see it. Only the way to the endpoint is tested so, and not the way back.
package diagnose
