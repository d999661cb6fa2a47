package servicemodel

import (
	"errors"
	"slices"
)

// MasqueradePolicy says which packets get the node's address as their source, so that endpoints
// answer to the node. Two kinds of connections are always masqueraded: from an endpoint to itself,
// and from the node itself to a loopback address.
type MasqueradePolicy string

const (
	// MasqueradeDefault is the default and does what kube-proxy does. At cluster IPs it is
	// MasqueradeNotPods if the node can tell pods, else MasqueradeNever; [Node.MasqueradeAll] makes
	// it MasqueradeAlways. At all other addresses it is MasqueradeAlways, or MasqueradeHost with
	// external traffic policy Local.
	MasqueradeDefault MasqueradePolicy = ""
	// MasqueradeAlways masquerades all clients.
	MasqueradeAlways MasqueradePolicy = "always"
	// MasqueradeNotPods masquerades all clients except pods ([Node.LocalPods]).
	MasqueradeNotPods MasqueradePolicy = "not-pods"
	// MasqueradeHost masquerades only the node itself.
	MasqueradeHost MasqueradePolicy = "host"
	// MasqueradeNever masquerades no client. The endpoints' answers must come back through this
	// node some other way: by routing, or because the endpoints are on it.
	MasqueradeNever MasqueradePolicy = "never"
)

// UnmarshalText also takes "default" for [MasqueradeDefault].
func (p *MasqueradePolicy) UnmarshalText(text []byte) error {
	*p = MasqueradePolicy(wordOr(text, "default"))
	return nil
}

// masqueradePolicies are the policies without the default.
var masqueradePolicies = []MasqueradePolicy{MasqueradeAlways, MasqueradeNotPods, MasqueradeHost,
	MasqueradeNever}

// ParseMasqueradePolicy parses "default", "always", "not-pods", "host" or "never".
func ParseMasqueradePolicy(s string) (MasqueradePolicy, error) {
	switch p := MasqueradePolicy(s); {
	case s == "default":
		return MasqueradeDefault, nil
	case slices.Contains(masqueradePolicies, p):
		return p, nil
	}
	return "", errors.New("must be default, always, not-pods, host or never")
}

// origins returns the origins that are masqueraded at addresses of kind k. usual is the answer for
// the default.
func (m *Masquerade) origins(k Kind, usual Origins) Origins {
	switch [...]MasqueradePolicy{ClusterIP: m.ClusterIPs, LoadBalancer: m.LoadBalancerIPs,
		ExternalIP: m.ExternalIPs, NodePort: m.NodePorts, HostIP: m.HostIPs}[k] {
	case MasqueradeAlways:
		return FromAnywhere
	case MasqueradeNotPods:
		return FromHost | FromOutside
	case MasqueradeHost:
		return FromHost
	case MasqueradeNever:
		return 0
	}
	return usual
}

// Masquerade has a policy for each kind of address that a service answers at.
type Masquerade struct {
	ClusterIPs      MasqueradePolicy `json:"clusterIPs,omitzero"`
	LoadBalancerIPs MasqueradePolicy `json:"loadBalancerIPs,omitzero"`
	ExternalIPs     MasqueradePolicy `json:"externalIPs,omitzero"`
	HostIPs         MasqueradePolicy `json:"hostIPs,omitzero"`
	NodePorts       MasqueradePolicy `json:"nodePorts,omitzero"`
}

// MasqueradeAt returns the same policy for all kinds of addresses.
func MasqueradeAt(p MasqueradePolicy) Masquerade { return Masquerade{p, p, p, p, p} }
