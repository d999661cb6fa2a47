// Package tuning sets the limits and timeouts of connection tracking. They have the same meaning as
// in kube-proxy.
//
//	want := tuning.KubeProxy()
//	plan, err := tuning.NewPlan(ctx, table, &want)
//	…
//	fmt.Println(plan) // nf_conntrack_max: 65536 -> 131072
//	err = plan.Apply(table)
package tuning
