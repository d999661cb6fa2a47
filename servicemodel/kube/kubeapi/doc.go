// Package kubeapi makes states for an engine from a Kubernetes API server. It is a module of its
// own, so that only those who import it build client-go.
//
//	source, err := kubeapi.New(client, &kubeapi.Config{Tracker: kube.Config{Node: node}})
//	…
//	go engine.Run(ctx, nil)
//	err = source.Run(ctx, func(s servicemodel.State) { engine.Set(s) })
//
// A [Source] watches what kube-proxy 1.36 watches, with the same selectors: Services without the
// label service.kubernetes.io/service-proxy-name that are not headless, EndpointSlices without the
// label service.kubernetes.io/headless, the node's own Node, and ServiceCIDRs where the server has
// them (Kubernetes 1.33 and later). What it makes of them is described in package kube.
//
// # Nothing before all is known
//
// The first state comes after everything was listed: Services without their EndpointSlices would
// make an engine take every endpoint away. Then the Node is waited for, see [Config.NodeTimeout].
// So a program that is restarted while the API server is away leaves the kernel as it is.
//
// # When the API server goes away
//
// What is known stays, and with it the last state. Each kind is watched again with client-go's
// backoff, from where the watch broke off, or from a new list if the server has forgotten that
// version; what was deleted meanwhile is then deleted here too. [Source.Status] and the log have
// the error.
//
// # Permissions
//
// A ClusterRole that is enough:
//
//	rules:
//	- {apiGroups: [""], resources: [services, nodes], verbs: [list, watch]}
//	- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
//	- {apiGroups: [networking.k8s.io], resources: [servicecidrs], verbs: [list, watch]}
package kubeapi
