// Package health answers those who ask how services on this node are doing, with the same paths,
// codes, headers and bodies as kube-proxy 1.36.
//
// [NodePorts] answers external load balancers at the health check node ports of services whose
// external traffic policy is Local: whether this node has endpoints of the service. The program
// calls [NodePorts.Sync] after each apply:
//
//	ports := health.NewNodePorts(nil)
//	defer ports.Close()
//	engine.Subscribe(func(ctx context.Context, ev dataplane.Event) {
//		if ev, ok := ev.(dataplane.Applied); ok {
//			err := ports.Sync(ctx, ev.Changes.New)
//			…
//		}
//	})
//
// The ports answer in the families in which the service exists, each with its own count.
package health
