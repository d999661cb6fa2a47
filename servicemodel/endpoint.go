package servicemodel

import "net/netip"

// Endpoint is one address that serves a service.
//
// If several endpoints of a service have the same address and port, only one of them counts: a
// ready one before one that serves while it terminates. Among equals, one that is not terminating
// comes first, then the first in the list.
type Endpoint struct {
	// Addr is the address at which the endpoint listens. Its family decides which of the service's
	// addresses it serves.
	Addr netip.Addr `json:"addr"`

	// Ports are the endpoint's ports. A service port uses the one with its name and protocol. An
	// endpoint without such a port does not serve the service port.
	Ports []EndpointPort `json:"ports,omitempty"`

	// Ready says that the endpoint takes new traffic.
	Ready bool `json:"ready,omitzero"`
	// Serving says that the endpoint would take traffic if it did not terminate. A terminating
	// endpoint that still serves is used if no endpoint is ready.
	Serving bool `json:"serving,omitzero"`
	// Terminating says that the endpoint is shutting down.
	Terminating bool `json:"terminating,omitzero"`

	// Node is the name of the node that the endpoint runs on, empty if unknown. The endpoint is
	// local if it equals [Node.Name].
	Node string `json:"node,omitzero"`
	// Zone is the zone that the endpoint runs in. It counts only for [Service.Prefer].
	Zone string `json:"zone,omitzero"`
	// ForNodes and ForZones are topology hints: the nodes and zones that should use this endpoint.
	ForNodes []string `json:"forNodes,omitempty"`
	ForZones []string `json:"forZones,omitempty"`

	// Weight is the endpoint's share relative to the other endpoints. Zero means 1.
	Weight uint16 `json:"weight,omitzero"`
	// Quiesced says that the endpoint takes no new connections, whatever its other fields say.
	// Elsewhere a weight of 0 means this. It counts as not ready, and is no fallback either. Its
	// connections are treated like connections to a terminating endpoint ([ConnectionPolicy]), and
	// so are its UDP flows while it is ready or serving. Clients that session affinity remembers
	// get another endpoint.
	Quiesced bool `json:"quiesced,omitzero"`
}

// EndpointPort is a port that an [Endpoint] listens on. It serves the service ports of its name and
// protocol.
type EndpointPort struct {
	Name     string   `json:"name,omitzero"`
	Protocol Protocol `json:"protocol"`
	Port     uint16   `json:"port"`
}
