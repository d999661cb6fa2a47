// Package kube turns Kubernetes objects into the model of package servicemodel: Services,
// EndpointSlices, the older Endpoints, Nodes and ServiceCIDRs.
//
// A program passes objects to a [Tracker] as they are added, changed and removed, in any order and
// from any goroutine. On request, the tracker returns a [servicemodel.State]. It keeps the
// translated objects, so that a change costs only the work for its own service:
//
//	Service, EndpointSlice, …  ──Set, Delete──►  Tracker  ──State──►  servicemodel.State
//
//	tracker := kube.NewTracker(&kube.Config{Node: node})
//	problems := tracker.SetService(service) // and so on, for each added or changed object
//	result, err := engine.Apply(ctx, tracker.State())
//
// Package kubeapi watches an API server for these objects, and package manifest reads them from
// files.
//
// The tracker translates the objects as kube-proxy 1.36 does, field by field. Later,
// [servicemodel.Resolve] decides which endpoints are used and at which addresses a service answers.
//
// # Objects that are ignored
//
// Services with the label service.kubernetes.io/service-proxy-name belong to another proxy and are
// ignored. Services of type ExternalName, and services whose spec.clusterIP is None or empty, are
// not proxied. The tracker also ignores EndpointSlices and Endpoints with the label
// service.kubernetes.io/headless, EndpointSlices of address type FQDN, and EndpointSlices without
// the label kubernetes.io/service-name. It ignores the Node objects of other nodes.
//
// # Objects that are wrong
//
// An invalid object is left out of the state as a whole, and does not affect other objects. The
// tracker uses neither the valid parts of such an object nor an earlier version of it. So the state
// depends only on the current objects and not on their history, and a restarted program builds the
// same state. Each fault is a [Problem] of severity [Error] that names the object and the field. If
// kube-proxy skips a value, the tracker skips it, too: it reports a [Problem] of severity
// [Warning], and uses the rest of the object. For objects that no API server has validated, see
// [Config.Strict]. [Tracker.Unmatched] returns valid objects that no service can use.
//
// # Annotations
//
// With [Config.Annotations], such as "kernlb.io", annotations of a Service set fields that have no
// counterpart in Kubernetes:
//
//	kernlb.io/affinity      ipv4/24 ipv6/56: clients of a prefix are one; service: one endpoint
//	                        address at all ports
//	kernlb.io/clients       10.0.0.0/8,!10.1.0.0/16: clients that may connect, and behind "!"
//	                        clients that may not
//	kernlb.io/connections   leave, cut, or the time that connections are drained: 30s
//	kernlb.io/forwarding    nat, direct or tunnel
//	kernlb.io/masquerade    always, not-pods, host or never, at all addresses
//	kernlb.io/masquerade-ips
//	                        the sources of masqueraded connections: 10.0.0.2,fd00::2
//	kernlb.io/ports         10000-20000: the port 10000 is this range of ports;
//	                        8000-8099:9000-9099: which is mapped to this range of the endpoints
//	kernlb.io/prefer        node or zone
//	kernlb.io/scheduler     wrr, lc, mh+port, …
//	kernlb.io/silent-endpoints
//	                        eject or stay: the treatment of endpoints that do not answer
//	kernlb.io/slow-start    the time in which an endpoint reaches its full weight: 30s
//
// They set the fields SessionAffinity, Clients, Connections, Forwarding, Masquerade, MasqueradeIPs,
// Prefer, Scheduler, SilentEndpoints and SlowStart of [servicemodel.Service], and the EndPort and
// TargetPort of its ports. A range has no node port. Packets to a range keep their ports if the
// range's target port is its first port, which is the default. With any other target port, all
// packets of the range go to that one port. To map the range to another range, set the target port
// to the first port of the other range.
//
// An EndpointSlice may have:
//
//	kernlb.io/weight        the weight of each of its endpoints; 0 means no new connections
//
// Any other name with the prefix causes a warning.
//
// # Services with several EndpointSlices
//
// The tracker merges the endpoints of all slices. An address with several port numbers is a
// separate endpoint for each number. Entries with the same address, port name, protocol and port
// number count as one endpoint. If the slices disagree about its condition, the tracker prefers an
// entry that is not terminating, then a ready entry, then an entry that serves, then the first in
// the order of the slices' names. The order in which the slices were set does not matter.
//
// Endpoints objects (core/v1) are used only for services without a known valid EndpointSlice.
// Kubernetes mirrors Endpoints that people write by hand to EndpointSlices. If both exist, the
// slices win because they contain more information.
//
// # Differences from kube-proxy
//
//   - With ClientIP affinity, a nil timeout means the API's default of three hours. A nil protocol
//     of an endpoint port means TCP. kube-proxy crashes on both.
//   - The tracker ignores IP addresses of a family in which the service has no cluster IP, as
//     kube-proxy does, but reports them.
//   - The tracker also performs the validation that kube-proxy leaves to the API server, and leaves
//     out invalid objects. It skips impossible load balancer addresses (loopback, multicast).
//   - If slices disagree about an endpoint's condition, the outcome is defined (above); in
//     kube-proxy it is random.
//   - The tracker follows changes of the Node's zone, addresses and pod CIDRs; kube-proxy needs a
//     restart for most of them.
//   - A CIDR in two ServiceCIDR objects stays until both are deleted; kube-proxy removes it when
//     the first is deleted.
//   - Resyncs, new resource versions, and changes of other labels and annotations do not change the
//     state, and so cause no work.
//   - Endpoints objects are used if there is no EndpointSlice; kube-proxy no longer supports them.
package kube
