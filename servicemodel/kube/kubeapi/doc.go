// Package kubeapi builds states for an engine from a Kubernetes API server. It is a separate
// module, so that only programs that import it build client-go.
//
//	source, err := kubeapi.New(client, &kubeapi.Config{Tracker: kube.Config{Node: node}})
//	…
//	go engine.Run(ctx, nil)
//	err = source.Run(ctx, func(s servicemodel.State) { engine.Set(s) })
//
// A [Source] watches the same objects as kube-proxy 1.36, with the same selectors: Services without
// the label service.kubernetes.io/service-proxy-name that are not headless, EndpointSlices without
// the label service.kubernetes.io/headless, the node's own Node, and ServiceCIDRs if the server has
// them (Kubernetes 1.33 and later). Package kube describes how they become states.
//
// # The first state
//
// The first state follows after everything was listed, because Services without their
// EndpointSlices would make an engine remove every endpoint. The source waits for ServiceCIDRs two
// seconds longer than for the other kinds. After that, it logs their absence, and states lack
// ServiceCIDRs until they are listed. Last, the source waits for the Node, see
// [Config.NodeTimeout]. So a program that restarts while the API server is unreachable leaves the
// kernel as it is.
//
// # Loss of the API server
//
// The known objects stay, and so does the last state. client-go watches each kind again with its
// backoff, from the point where the watch broke off, or from a new list if the server has forgotten
// that version. The new list also reveals objects that were deleted during the interruption.
// [Source.Status] and the log have the error.
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
