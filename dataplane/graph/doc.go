// Package graph draws the services of a node, and the path of packets through netfilter. Call
// [Services] or [Hooks], and then [Graph.Mermaid], [Graph.DOT] or [Graph.SVG]. An SVG needs no
// other files. The package is pure: the same input always gives the same text.
//
//	table, err := servicemodel.Resolve(nil, state) // or engine.Status().Held
//	…
//	fmt.Print(graph.Services(table, nil).Mermaid())
//
// [Services] draws a table: service ports, their frontends, the pools of the frontends, and
// endpoints with their shares. [Hooks] draws the base chains of nf_tables that package
// dataplane/hooks reads, in the order in which a packet passes them.
//
// A drawing consists of a few columns of boxes, with arrows from left to right. [Graph.SVG]
// computes the positions: each service port has a row, and an endpoint is in the row of its first
// service port. Names of services and chains come from other programs, and are escaped in all three
// formats.
package graph
