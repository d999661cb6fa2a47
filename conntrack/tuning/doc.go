// Package tuning sets the limits and timeouts of connection tracking, with the meaning that
// kube-proxy gives them.
//
//	want := tuning.KubeProxy()
//	plan, err := tuning.NewPlan(ctx, table, &want)
//	…
//	fmt.Println(plan) // nf_conntrack_max: 65536 -> 131072
//	err = plan.Apply(table)
package tuning
