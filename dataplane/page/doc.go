// Package page shows the contents and the work of an engine in a browser, and as JSON. It needs no
// script, and changes nothing in the kernel or the engine.
//
//	page := page.New(engine, nil)
//	defer page.Close()
//	mux.Handle("/kernlb/", http.StripPrefix("/kernlb", page))
//
// The page has these paths below its mount point, with these parameters:
//
//	/            services: q is a search, show is "all" or "problems", page counts from 1
//	/service     one service: name is "default/web", connections=1 counts its connections
//	/refused     services that are left out, and addresses that several services claim
//	/recent      the engine's last events, the newest first
//	/conntrack   how full the conntrack table is
//	/hooks       the nf_tables chains that packets pass, and their rules that drop packets
//	/trace       what happens to a packet: from is an address, link the interface that it comes in
//	             by, to is such as "10.96.0.10:80/tcp"
//
// A POST to /ask with the name of a service opens a connection to each of its TCP endpoints to see
// whether they answer. The program must allow this ([Config.Dial]).
//
// Each path with ".json" appended ("/services.json" for the first) returns the same as JSON;
// docs/page.md lists the fields.
//
// # Access
//
// Every client of the handler can read everything: names, addresses and endpoints. The page has no
// authentication. Mount it where only administrators have access, or put your own check in front of
// it. For listeners on loopback addresses, use [Loopback], because pages of other sites can reach
// such addresses through a browser on the same machine.
//
// Its Content-Security-Policy forbids everything that the page does not need: scripts, other sites,
// frames. html/template escapes all contents.
//
// # Cost
//
// If there are no requests, the page only records one line for each event of the engine
// ([Config.Recent]). It lists all services once per state of the engine, and searches that list;
// docs/page.md has figures for 10,000 services.
package page
