package kubeproxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// kube-proxy has been stopped. The new backend applies first, and then kube-proxy's objects are
// deleted.
func Example() {
	handOver := func(ctx context.Context, services servicemodel.State) error {
		backend, err := nftables.New(nil)
		if err != nil {
			return err
		}
		defer backend.Close()
		if _, err := dataplane.New(backend, nil).Apply(ctx, services); err != nil {
			return err // kube-proxy's rules still serve
		}
		done, err := kubeproxy.Cleanup(ctx, nil)
		fmt.Print(done)
		return err
	}

	_ = handOver // it needs privileges
}

// A plan prints as the commands that would do the same.
func ExamplePlan() {
	var p kubeproxy.Plan
	err := json.Unmarshal([]byte(`{
		"rules": [{"family": "ip", "table": "nat", "chain": "PREROUTING", "handle": 7,
			"target": "KUBE-SERVICES"}],
		"chains": [{"family": "ip", "table": "nat", "chain": "KUBE-SERVICES"}],
		"virtualServers": [{"protocol": "TCP", "address": "10.96.0.1:443"}],
		"device": "kube-ipvs0",
		"sets": ["KUBE-CLUSTER-IP"]}`), &p)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(&p)
	// Output:
	// nft delete rule ip nat PREROUTING handle 7 # jump KUBE-SERVICES
	// nft flush chain ip nat KUBE-SERVICES
	// nft delete chain ip nat KUBE-SERVICES
	// ipvsadm -D -t 10.96.0.1:443
	// ip link delete kube-ipvs0
	// ipset destroy KUBE-CLUSTER-IP
}
