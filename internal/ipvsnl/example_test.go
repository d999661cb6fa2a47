package ipvsnl_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/ipvsnl/ipvsfake"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// A service with two destinations is made in one request, and read again. On a kernel with IPVS, it
// would be ipvsnl.Dial instead of the Dial of a fake.
func Example() {
	ctx := context.Background()
	c, err := ipvsfake.New().Dial(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	web := ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("10.96.0.1:80"))
	var b ipvsnl.Batch
	b.NewService(ipvsnl.Service{ServiceKey: web, Scheduler: "wlc"})
	for _, addr := range []string{"10.244.1.1", "10.244.1.2"} {
		b.NewDestination(web, ipvsnl.Destination{
			DestinationKey: ipvsnl.DestinationKey{Addr: netip.MustParseAddr(addr), Port: 8080},
			Weight:         1,
		})
	}
	if err := c.Submit(ctx, &b); err != nil {
		fmt.Println(err)
	}

	list, err := c.Destinations(ctx, web)
	if err != nil {
		fmt.Println(err)
	}
	for _, d := range list {
		fmt.Println(web, "->", d, d.Forward, "weight", d.Weight)
	}
	// Output:
	// TCP 10.96.0.1:80 -> 10.244.1.1:8080 masquerade weight 1
	// TCP 10.96.0.1:80 -> 10.244.1.2:8080 masquerade weight 1
}

// IPVS has no transactions: what can be done is done, and the rest is reported.
func ExampleClient_Submit() {
	ctx := context.Background()
	c, err := ipvsfake.New().Dial(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	var b ipvsnl.Batch
	b.NewService(ipvsnl.Service{ServiceKey: ipvsnl.MarkService(ipvsnl.FamilyIPv4, 1),
		Scheduler: "rr"})
	b.NewService(ipvsnl.Service{ServiceKey: ipvsnl.MarkService(ipvsnl.FamilyIPv4, 2),
		Scheduler: "best"})
	err = c.Submit(ctx, &b)
	for _, refusal := range rawnl.Refusals(err) {
		fmt.Println("command", refusal.Index, "of", b.Len(), "failed:", refusal)
	}
	fmt.Println(errors.Is(err, ipvsnl.ErrNoModule))
	// Output:
	// command 1 of 2 failed: new service FWM 2 IPv4: no such scheduler or persistence engine
	// true
}
