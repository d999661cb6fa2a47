// Package health answers health checks about the services on this node. Paths, status codes,
// headers and bodies are the same as in kube-proxy 1.36. The package only answers; it changes
// nothing. [NewProxy] reports the health of the whole engine, and [NewNodePorts] the health of
// single services:
//
//	proxy := health.NewProxy(engine, nil)
//	ports := health.NewNodePorts(&health.NodePortsConfig{Healthy: proxy.Healthy})
//	defer ports.Close()
//	defer ports.Follow(engine, func(err error) { … })()
//	http.ListenAndServe("0.0.0.0:10256", proxy.Handler())
//
// [Proxy] serves /healthz and /livez, which say whether desired states reach the kernel in time.
//
// [NodePorts] serves the health check node ports of services whose external traffic policy is
// Local. It tells external load balancers whether this node has endpoints of the service. Each port
// answers in the families of its service, with a separate count for each family.
package health
