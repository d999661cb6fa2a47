// Package health answers those who ask how services on this node are doing, with the same paths,
// codes, headers and bodies as kube-proxy 1.36. It listens and tells; it changes nothing.
//
// [NodePorts] answers external load balancers at the health check node ports of services whose
// external traffic policy is Local: whether this node has endpoints of the service. The ports
// answer in the families in which the service exists, each with its own count.
//
// [Proxy] serves /healthz and /livez: whether what is wanted reaches the kernel in time. A program
// that uses both:
//
//	proxy := health.NewProxy(engine, nil)
//	ports := health.NewNodePorts(&health.NodePortsConfig{Healthy: proxy.Healthy})
//	defer ports.Close()
//	engine.Subscribe(func(ctx context.Context, ev dataplane.Event) {
//		if ev, ok := ev.(dataplane.Applied); ok {
//			err := ports.Sync(ctx, ev.Changes.New)
//			…
//		}
//	})
//	http.ListenAndServe("0.0.0.0:10256", proxy.Handler())
package health
