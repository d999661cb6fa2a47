// Package kubeapi builds states for an engine from a Kubernetes API server. It is a separate
// module, so that only programs that import it have to build client-go.
//
//	source, err := kubeapi.New(client, &kubeapi.Config{Tracker: kube.Config{Node: node}})
//	…
//	go engine.Run(ctx, nil)
//	err = source.Run(ctx, func(s servicemodel.State) { engine.Set(s) })
//
// A [Source] watches the same objects as kube-proxy 1.36, with the same selectors: Services without
// the label service.kubernetes.io/service-proxy-name that are not headless, EndpointSlices without
// the label service.kubernetes.io/headless, the node's own Node, and ServiceCIDRs if the server has
// them (Kubernetes 1.33 and later). Package kube describes how they become a state.
//
// # The first state
//
// The source produces its first state only after it has listed everything, because Services without
// their EndpointSlices would make an engine remove every endpoint. It waits two seconds longer for
// ServiceCIDRs than for the other kinds. After that, it logs their absence, and states lack
// ServiceCIDRs until they are listed. Finally, the source waits for the Node, see
// [Config.NodeTimeout]. So a program that restarts while the API server is unreachable does not
// change the kernel.
//
// # Loss of the API server
//
// The source keeps the known objects and its last state. client-go watches each kind again after a
// backoff: from where the watch stopped or, if the server no longer has that version, from a new
// list. The new list also reveals objects that were deleted during the interruption.
// [Source.Status] and the log report the error.
//
// # Permissions
//
// A sufficient ClusterRole:
//
//	rules:
//	- {apiGroups: [""], resources: [services, nodes], verbs: [list, watch]}
//	- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
//	- {apiGroups: [networking.k8s.io], resources: [servicecidrs], verbs: [list, watch]}
package kubeapi
