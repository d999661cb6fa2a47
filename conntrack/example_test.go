package conntrack_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/kernlb/kernlb/conntrack"
)

// A DNS service lost an endpoint. Its UDP clients must move to another endpoint.
func ExampleTable_Clean() {
	table, err := conntrack.Open(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()
	left := []netip.AddrPort{netip.MustParseAddrPort("10.244.0.6:5353")}
	m, err := conntrack.NewMatcher(conntrack.Change{
		Frontends: []conntrack.Frontend{{
			Key: conntrack.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Port: 53,
				Protocol: conntrack.UDP},
			Endpoints:    left,
			Untranslated: true,
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := table.Clean(context.Background(), m, conntrack.CleanOptions{})
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("%d flows deleted", result.Deleted)
}

// Count the connections of each endpoint of a service.
func ExampleTable_Flows() {
	table, err := conntrack.Open(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()
	flows := table.Flows(context.Background(), conntrack.Filter{
		Protocol:        conntrack.TCP,
		OriginalDst:     netip.MustParseAddr("10.96.0.20"),
		OriginalDstPort: 443,
	})
	counts := map[netip.AddrPort]int{}
	for f, err := range flows {
		if err != nil {
			log.Fatal(err)
		}
		counts[f.Reply.Src]++
	}

	for endpoint, n := range counts {
		log.Printf("%s has %d", endpoint, n)
	}
}

// The matcher works without a kernel.
func ExampleMatcher_Stale() {
	frontend := conntrack.FrontendKey{Addr: netip.MustParseAddr("10.96.0.10"), Port: 53,
		Protocol: conntrack.UDP}
	m, err := conntrack.NewMatcher(conntrack.Change{Frontends: []conntrack.Frontend{{
		Key: frontend, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.244.0.6:5353")},
		Untranslated: true,
	}}})
	if err != nil {
		log.Fatal(err)
	}
	client := netip.MustParseAddrPort("10.244.0.9:4000")
	for _, endpoint := range []string{"10.244.0.5:5353", "10.244.0.6:5353", "10.96.0.10:53"} {
		f := conntrack.Flow{
			Protocol: conntrack.UDP,
			Original: conntrack.Tuple{Src: client, Dst: netip.AddrPortFrom(frontend.Addr,
				frontend.Port)},
			Reply: conntrack.Tuple{Src: netip.MustParseAddrPort(endpoint), Dst: client},
		}
		fmt.Println(endpoint, m.Stale(&f))
	}
	// Output:
	// 10.244.0.5:5353 true
	// 10.244.0.6:5353 false
	// 10.96.0.10:53 true
}

// To know the table and all its changes, first follow it, then list it.
func ExampleTable_Follow() {
	table, err := conntrack.Open(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()
	events, err := table.Follow(context.Background(),
		conntrack.FollowOptions{Filter: conntrack.Filter{Protocol: conntrack.UDP}})
	if err != nil {
		log.Fatal(err)
	}
	for event, err := range events {
		if err != nil {
			log.Fatal(err)
		}
		if event.Type == conntrack.EventsLost {
			log.Print("the kernel was too fast: list the table again")
			continue
		}

		log.Print(event.Type, " ", event.Flow)
	}
}
