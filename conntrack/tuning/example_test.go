package tuning_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/tuning"
)

// The settings that kube-proxy makes when it starts.
func ExampleNewPlan() {
	table, err := conntrack.Open(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()
	want := tuning.KubeProxy()
	plan, err := tuning.NewPlan(context.Background(), table, &want)
	if err != nil {
		log.Fatal(err)
	}
	log.Print(plan)
	if err := plan.Apply(table); err != nil {
		log.Fatal(err)
	}
}

func ExamplePlan() {
	plan := tuning.Plan{
		{Name: "nf_conntrack_max", Old: 65536, New: 131072},
		{Name: "nf_conntrack_tcp_timeout_established", Old: 864000, New: 864000,
			Note: "stays above the 86400 wanted"},
	}
	fmt.Println(plan)
	// Output:
	// nf_conntrack_max: 65536 -> 131072
	// nf_conntrack_tcp_timeout_established: 864000 (stays above the 86400 wanted)
}
