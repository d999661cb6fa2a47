package netnstest_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// If no rule on the node translates an address, the internet answers.
func Example() {
	if done, code, err := netnstest.ReExecInUserNS(); done || err != nil {
		log.Printf("the copy in a user namespace ended with code %d: %v", code, err)
		return
	}

	ctx := context.Background()
	cluster, err := netnstest.New(ctx, netnstest.Options{})
	if err != nil {
		log.Print(err)
		return
	}

	defer cluster.Close()
	for _, pod := range cluster.Pods {
		if err := pod.Serve(servicemodel.TCP, 8080); err != nil {
			log.Print(err)
			return
		}
	}

	// Here a program would put rules into cluster.Node.NS that make 10.96.0.10:80 a service of the
	// pods.
	probe := netnstest.Probe{
		From:  cluster.Outside[0],
		Proto: servicemodel.TCP,
		To:    netip.MustParseAddrPort("10.96.0.10:80"),
	}
	fmt.Println(probe.Send(ctx)) // answered by internet seeing 198.51.100.11:10000
}
