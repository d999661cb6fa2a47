// Package graph draws what services mean on a node, and the way of packets through netfilter, as
// Mermaid, as DOT and as SVG that needs nothing else. It is pure: the same input always gives the
// same text.
//
// [Services] draws a table: service ports, their frontends, the pools that these balance over, and
// endpoints with their shares. [Hooks] draws the base chains of nf_tables, which package
// dataplane/hooks reads, in the order in which a packet passes them.
//
//	table, err := servicemodel.Resolve(nil, state) // or engine.Status().Held
//	…
//	fmt.Print(graph.Services(table, nil).Mermaid())
//
// A drawing is a few columns of boxes and arrows from left to right. [Graph.SVG] places them by
// itself: each service port has a row, and an endpoint is in the row of the first that has it. What
// is drawn is text of others (names of services and chains), and is escaped in all three.
package graph
