package servicemodel

import "errors"

// MasqueradePolicy says whose source address is replaced by the node's, so that endpoints answer to
// the node. A connection of an endpoint to itself always is masqueraded, and so is one of the node
// itself to a loopback address.
type MasqueradePolicy uint8

const (
	// MasqueradeDefault does what kube-proxy does. At cluster IPs it is MasqueradeNotPods if the
	// node can tell pods, else MasqueradeNever; [Node.MasqueradeAll] makes it MasqueradeAlways. At
	// all other addresses it is MasqueradeAlways, and with external traffic policy Local
	// MasqueradeHost. The default.
	MasqueradeDefault MasqueradePolicy = iota
	// MasqueradeAlways replaces the source address of everybody.
	MasqueradeAlways
	// MasqueradeNotPods replaces that of everybody but pods ([Node.LocalPods]).
	MasqueradeNotPods
	// MasqueradeHost replaces that of the node itself only.
	MasqueradeHost
	// MasqueradeNever replaces none. What endpoints answer must come back through this node some
	// other way: because they are on it, or by routing.
	MasqueradeNever
)

// masqueradePolicies are the names of the policies.
var masqueradePolicies = [...]string{
	MasqueradeDefault: "default",
	MasqueradeAlways:  "always",
	MasqueradeNotPods: "not-pods",
	MasqueradeHost:    "host",
	MasqueradeNever:   "never",
}

// String returns "default", "always", "not-pods", "host" or "never".
func (p MasqueradePolicy) String() string {
	if int(p) < len(masqueradePolicies) {
		return masqueradePolicies[p]
	}
	return "masquerade policy " + uitoa(uint16(p))
}

// ParseMasqueradePolicy is the inverse of [MasqueradePolicy.String].
func ParseMasqueradePolicy(s string) (MasqueradePolicy, error) {
	for p, name := range masqueradePolicies {
		if s == name {
			return MasqueradePolicy(p), nil
		}
	}
	return 0, errors.New("must be default, always, not-pods, host or never")
}

// origins returns whom p masquerades, where usual is the default.
func (p MasqueradePolicy) origins(usual Origins) Origins {
	switch p {
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

// of returns the policy of a kind.
func (m *Masquerade) of(k Kind) MasqueradePolicy {
	return [...]MasqueradePolicy{ClusterIP: m.ClusterIPs, LoadBalancer: m.LoadBalancerIPs,
		ExternalIP: m.ExternalIPs, NodePort: m.NodePorts, HostIP: m.HostIPs}[k]
}
