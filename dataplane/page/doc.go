// Package page shows in a browser, and as JSON, what an engine holds and does. It changes nothing,
// neither in the kernel nor in the engine, and needs no script.
//
//	page := page.New(engine, nil)
//	defer page.Close()
//	mux.Handle("/kernlb/", http.StripPrefix("/kernlb", page))
//
// The paths below the place where it is mounted, each with its parameters:
//
//	/            services: q is a search, show is "all" or "problems", page counts from 1
//	/service     one service: name is "default/web", connections=1 counts its connections
//	/refused     services that are left out, and addresses that several services claim
//	/recent      what the engine did, the newest first
//	/conntrack   how full the conntrack table is
//	/hooks       the chains of nf_tables that packets pass, and what of them drops packets
//	/trace       what happens to a packet: from is an address, link the interface that it comes in
//	             by, to is such as "10.96.0.10:80/tcp"
//
// A POST to /ask with the name of a service opens a connection to each of its TCP endpoints, to
// tell whether they answer, if the program lets it ([Config.Dial]).
//
// With ".json" behind it ("/services.json" for the first), each path has the same as JSON;
// docs/page.md has the fields.
//
// # Who may read it
//
// Whoever reaches the handler reads all of it: names, addresses and endpoints. It asks nobody for a
// password, so a program mounts it where only administrators come, or puts its own check before it.
// [Loopback] is for listeners on loopback addresses, which pages of other sites reach through the
// browser of somebody on the same machine.
//
// Its answers forbid browsers all that the page does not need (Content-Security-Policy): scripts,
// other sites, frames. What it shows is escaped by html/template.
//
// # What it costs
//
// Nothing is done until somebody looks, but for a line for each thing that the engine does
// ([Config.Recent]). A list of 10,000 services is made once for each state of the engine, and
// searched; docs/page.md has figures.
package page
