// Package kube turns Kubernetes objects into the model of package servicemodel: Services,
// EndpointSlices, the older Endpoints, Nodes and ServiceCIDRs.
//
// A [Tracker] is told of objects as they come and go, in any order and from any goroutine, and
// yields a [servicemodel.State] when asked. It keeps what it translated, so that a change costs the
// service it is about:
//
//	Service, EndpointSlice, …  ──Set, Delete──►  Tracker  ──State──►  servicemodel.State
//
//	tracker := kube.NewTracker(kube.Config{Node: node})
//	problems := tracker.SetService(service) // and so on, for each object that came or changed
//	result, err := engine.Apply(ctx, tracker.State())
//
// Package kubeapi watches an API server for these objects, and package manifest reads them from
// files.
//
// What it makes of the objects is what kube-proxy makes of them (version 1.36), field by field.
// Which of the endpoints are used, and where the service answers, is decided later, by
// [servicemodel.Resolve].
//
// # Objects that are ignored
//
// Services with the label service.kubernetes.io/service-proxy-name belong to another proxy.
// Services of type ExternalName, or whose spec.clusterIP is None or empty, are not proxied.
// EndpointSlices and Endpoints with the label service.kubernetes.io/headless are of no use, nor are
// EndpointSlices of address type FQDN, nor those without the label kubernetes.io/service-name. Node
// objects count only if they are the node's own.
//
// # Objects that are wrong
//
// An object that is invalid keeps out of the state, whole, and spoils no other: no part of it is
// used, and no earlier version of it either. So the state depends on what the objects are now and
// not on their history, and a program that was restarted arrives at the same one. Each thing wrong
// is a [Problem] that names the object and the field, of severity [Error]. What kube-proxy skips,
// the tracker skips too: that is a [Problem] of severity [Warning], and the rest of the object is
// used. See [Config.Strict] for objects that no API server has validated. What is right, but of no
// use to any service, [Tracker.Unmatched] tells.
//
// # Annotations
//
// With [Config.Annotations], such as "kernlb.io", annotations of a Service say what Kubernetes has
// no field for:
//
//	kernlb.io/connections   leave, cut, or how long connections are drained: 30s
//	kernlb.io/forwarding    nat, direct or tunnel
//	kernlb.io/masquerade    always, not-pods, host or never, at all addresses
//	kernlb.io/scheduler     wrr, lc, mh+port, …
//
// They set the fields Connections, Forwarding, Masquerade and Scheduler of [servicemodel.Service].
// An EndpointSlice may have:
//
//	kernlb.io/weight        the weight of each of its endpoints; 0: they take no new connections
//
// Another name behind the prefix is a warning.
//
// # Services with several EndpointSlices
//
// The endpoints of all slices are united. One address may occur several times with different port
// numbers: those are different endpoints. What is the same in address, port name, protocol and port
// number is one endpoint, and if the slices disagree about its condition, one that is not
// terminating wins over one that is, then a ready one, then one that serves, then the first in the
// order of the slices' names. The order in which the slices were set does not matter.
//
// Endpoints objects (core/v1) are used for services of which no valid EndpointSlice is known.
// Kubernetes mirrors Endpoints that people write by hand to EndpointSlices, so where both exist
// they say the same, and the slices, which say more, win.
//
// # Where it differs from kube-proxy
//
//   - A nil timeout under ClientIP affinity is the API's default, three hours, and a nil endpoint
//     port protocol is TCP; kube-proxy crashes.
//   - An IP address of a family in which the service has no cluster IP is not used, as in
//     kube-proxy, but is reported.
//   - What kube-proxy leaves to API validation is checked here too, and an invalid object is left
//     out. A load balancer address that cannot be one (loopback, multicast) is skipped.
//   - Endpoints that differ between slices in their condition have a defined outcome (above); in
//     kube-proxy it is random.
//   - The zone, addresses and pod CIDRs of the Node are followed when they change; kube-proxy wants
//     a restart for most of that.
//   - A CIDR named by two ServiceCIDR objects stays until both are gone; in kube-proxy it goes with
//     the first.
//   - Resynchronisation, new resource versions, and changes of labels and annotations that mean
//     nothing lead to the same state, thus to no work.
//   - Endpoints objects are used where there is no EndpointSlice; kube-proxy does not know them any
//     more.
package kube
