package servicemodel

import "net/netip"

// Endpoint is one address that serves a service.
//
// If several endpoints of a service name the same address and port, one of them counts: one that is
// ready, else one that serves while it terminates; among equals one that is not terminating, then
// the first.
type Endpoint struct {
	// Addr is where the endpoint listens. Its family decides which of the
	// service's addresses it serves.
	Addr netip.Addr `json:"addr"`

	// Ports are the endpoint's ports. A service port uses the one with its name and
	// protocol; an endpoint without one does not serve that port.
	Ports []EndpointPort `json:"ports,omitempty"`

	// Ready says that the endpoint takes new traffic.
	Ready bool `json:"ready,omitzero"`
	// Serving says that it would, were it not terminating.
	// A terminating endpoint that still serves is used when there is no ready one.
	Serving bool `json:"serving,omitzero"`
	// Terminating says that the endpoint is shutting down.
	Terminating bool `json:"terminating,omitzero"`

	// Node is the name of the node it runs on; empty if unknown. It is local where it
	// equals [Node.Name].
	Node string `json:"node,omitzero"`
	// Zone is the zone it runs in; informative, the hints decide.
	Zone string `json:"zone,omitzero"`
	// ForNodes and ForZones are topology hints: the nodes and zones that should use this endpoint.
	ForNodes []string `json:"forNodes,omitempty"`
	ForZones []string `json:"forZones,omitempty"`

	// Weight is its share relative to the other endpoints. Zero means 1.
	Weight uint16 `json:"weight,omitzero"`
	// Quiesced says that the endpoint takes no new connections, whatever else holds: what a weight
	// of 0 says elsewhere. It counts as one that is not ready, and is no fallback either. Its
	// connections, and UDP flows while it is ready or serving, are dealt with as those of an
	// endpoint that terminates ([ConnectionPolicy]); remembered clients are given another.
	Quiesced bool `json:"quiesced,omitzero"`
}

// EndpointPort is the number an [Endpoint] listens on for the service ports of that name.
type EndpointPort struct {
	Name     string   `json:"name,omitzero"`
	Protocol Protocol `json:"protocol"`
	Port     uint16   `json:"port"`
}
