package servicemodel

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// What is one word or one line as text is the same in JSON, where its type has MarshalText and
// UnmarshalText; see docs/json.md.

// marshalName returns the name of one of the values of a type.
func marshalName[T interface {
	comparable
	fmt.Stringer
}](value T, all ...T) ([]byte, error) {
	for _, v := range all {
		if v == value {
			return []byte(v.String()), nil
		}
	}
	return nil, fmt.Errorf("%v: has no name", value)
}

// unmarshalName sets *value to the one of that name.
func unmarshalName[T fmt.Stringer](value *T, text []byte, all ...T) error {
	names := make([]string, len(all))
	for i, v := range all {
		if names[i] = v.String(); names[i] == string(text) {
			*value = v
			return nil
		}
	}
	last := len(names) - 1
	return fmt.Errorf("%q: must be %s or %s", text, strings.Join(names[:last], ", "), names[last])
}

// ParseProtocol returns the protocol of a name, in lower or in upper case, or the inverse of
// [Protocol.String].
func ParseProtocol(s string) (p Protocol, err error) {
	if number, ok := strings.CutPrefix(s, "protocol "); ok {
		if n, err := strconv.ParseUint(number, 10, 8); err == nil && n > 0 {
			return Protocol(n), nil
		}
	}
	return p, unmarshalName(&p, []byte(strings.ToLower(s)), TCP, UDP, SCTP)
}

// MarshalText returns "tcp", "udp" or "sctp", or a number, such as "protocol 1".
func (p Protocol) MarshalText() ([]byte, error) {
	if p == 0 {
		return nil, fmt.Errorf("%v: has no name", p)
	}
	return []byte(p.String()), nil
}

// UnmarshalText is [ParseProtocol].
func (p *Protocol) UnmarshalText(text []byte) (err error) {
	*p, err = ParseProtocol(string(text))
	return err
}

// MarshalText returns "IPv4" or "IPv6".
func (f Family) MarshalText() ([]byte, error) { return marshalName(f, IPv4, IPv6) }

// UnmarshalText is the inverse of MarshalText.
func (f *Family) UnmarshalText(text []byte) error { return unmarshalName(f, text, IPv4, IPv6) }

// ParseName is the inverse of [Name.String]. It does not ask whether the name is valid.
func ParseName(s string) (Name, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return Name{}, fmt.Errorf("%q: must be NAMESPACE/NAME", s)
	}
	return Name{Namespace: namespace, Name: name}, nil
}

// MarshalText returns "namespace/name".
func (n Name) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText is [ParseName].
func (n *Name) UnmarshalText(text []byte) (err error) {
	*n, err = ParseName(string(text))
	return err
}

// ParseFrontendKey is the inverse of [FrontendKey.String]: "10.0.0.1:80/tcp", "[fd00::1]:80/tcp",
// or "*4:30080/tcp" and "*6:30080/tcp" for a node port.
func ParseFrontendKey(s string) (k FrontendKey, err error) {
	at, protocol, ok := strings.Cut(s, "/")
	if !ok {
		return k, fmt.Errorf("%q: must be ADDRESS:PORT/PROTOCOL", s)
	}
	if k.Protocol, err = ParseProtocol(protocol); err != nil {
		return FrontendKey{}, fmt.Errorf("%q: protocol %w", s, err)
	}
	for prefix, any := range map[string]netip.Addr{"*4:": netip.IPv4Unspecified(),
		"*6:": netip.IPv6Unspecified()} {
		if port, ok := strings.CutPrefix(at, prefix); ok {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return FrontendKey{}, fmt.Errorf("%q: port: %w", s, err)
			}
			return FrontendKey{Addr: any, Port: uint16(n), Protocol: k.Protocol}, nil
		}
	}
	a, err := netip.ParseAddrPort(at)
	if err != nil {
		return FrontendKey{}, fmt.Errorf("%q: %w", s, err)
	}
	k.Addr, k.Port = a.Addr(), a.Port()
	return k, nil
}

// MarshalText returns the key as [FrontendKey.String] does.
func (k FrontendKey) MarshalText() ([]byte, error) {
	if !k.Addr.IsValid() || k.Protocol == 0 {
		return nil, fmt.Errorf("%v: has no text", k)
	}
	return []byte(k.String()), nil
}

// UnmarshalText is [ParseFrontendKey].
func (k *FrontendKey) UnmarshalText(text []byte) (err error) {
	*k, err = ParseFrontendKey(string(text))
	return err
}

// MarshalText returns the name of the kind.
func (k Kind) MarshalText() ([]byte, error) { return marshalName(k, kinds...) }

// UnmarshalText is the inverse of MarshalText.
func (k *Kind) UnmarshalText(text []byte) error { return unmarshalName(k, text, kinds...) }

// MarshalText returns "reject", "drop", "cluster" or "local".
func (v Verdict) MarshalText() ([]byte, error) { return marshalName(v, verdicts...) }

// UnmarshalText is the inverse of MarshalText.
func (v *Verdict) UnmarshalText(text []byte) error { return unmarshalName(v, text, verdicts...) }

// MarshalText returns the set's members, such as "host,outside"; "none" and "all".
func (o Origins) MarshalText() ([]byte, error) { return marshalName(o, origins()...) }

// UnmarshalText is the inverse of MarshalText.
func (o *Origins) UnmarshalText(text []byte) error { return unmarshalName(o, text, origins()...) }

// MarshalText returns "cluster" or "local".
func (s Scope) MarshalText() ([]byte, error) { return marshalName(s, ScopeCluster, ScopeLocal) }

// UnmarshalText is the inverse of MarshalText.
func (s *Scope) UnmarshalText(text []byte) error {
	return unmarshalName(s, text, ScopeCluster, ScopeLocal)
}

// MarshalText returns the name of the kind.
func (k CauseKind) MarshalText() ([]byte, error) { return marshalName(k, causes()...) }

// UnmarshalText is the inverse of MarshalText.
func (k *CauseKind) UnmarshalText(text []byte) error { return unmarshalName(k, text, causes()...) }

// MarshalText returns the name of the outcome.
func (o Outcome) MarshalText() ([]byte, error) { return marshalName(o, outcomes...) }

// UnmarshalText is the inverse of MarshalText.
func (o *Outcome) UnmarshalText(text []byte) error { return unmarshalName(o, text, outcomes...) }

// MarshalText returns "Cluster" or "Local".
func (p TrafficPolicy) MarshalText() ([]byte, error) {
	return marshalName(p, PolicyCluster, PolicyLocal)
}

// UnmarshalText is the inverse of MarshalText.
func (p *TrafficPolicy) UnmarshalText(text []byte) error {
	return unmarshalName(p, text, PolicyCluster, PolicyLocal)
}

// String returns "VIP" or "Proxy", as in Kubernetes.
func (m LoadBalancerIPMode) String() string {
	if m == LoadBalancerProxy {
		return "Proxy"
	}
	return "VIP"
}

// MarshalText returns "VIP" or "Proxy".
func (m LoadBalancerIPMode) MarshalText() ([]byte, error) {
	return marshalName(m, LoadBalancerVIP, LoadBalancerProxy)
}

// UnmarshalText is the inverse of MarshalText.
func (m *LoadBalancerIPMode) UnmarshalText(text []byte) error {
	return unmarshalName(m, text, LoadBalancerVIP, LoadBalancerProxy)
}

// MarshalText returns "nat", "direct" or "tunnel".
func (f Forwarding) MarshalText() ([]byte, error) {
	return marshalName(f, ForwardNAT, ForwardDirect, ForwardTunnel)
}

// UnmarshalText is [ParseForwarding].
func (f *Forwarding) UnmarshalText(text []byte) (err error) {
	*f, err = ParseForwarding(string(text))
	return err
}

// MarshalText returns the name of the policy.
func (p MasqueradePolicy) MarshalText() ([]byte, error) {
	if int(p) >= len(masqueradePolicies) {
		return nil, fmt.Errorf("%v: has no name", p)
	}
	return []byte(p.String()), nil
}

// UnmarshalText is [ParseMasqueradePolicy].
func (p *MasqueradePolicy) UnmarshalText(text []byte) (err error) {
	*p, err = ParseMasqueradePolicy(string(text))
	return err
}

// MarshalText returns "default", "leave", "drain 30s" or "cut". A time that means nothing is left
// out.
func (p ConnectionPolicy) MarshalText() ([]byte, error) {
	if p.Mode > CutConnections {
		return nil, fmt.Errorf("%v: has no name", p)
	}
	return []byte(p.String()), nil
}

// IsZero reports whether p is the default, whatever its time.
func (p ConnectionPolicy) IsZero() bool { return p.Mode == ConnectionsDefault }

// UnmarshalText is [ParseConnectionPolicy], and "default".
func (p *ConnectionPolicy) UnmarshalText(text []byte) (err error) {
	if string(text) == "default" {
		*p = ConnectionPolicy{}
		return nil
	}
	*p, err = ParseConnectionPolicy(string(text))
	return err
}

// IsZero reports whether a means no affinity, whatever its timeout.
func (a SessionAffinity) IsZero() bool { return !a.ClientIP }

// MarshalText returns "none", or how long a client is remembered, such as "3h0m0s"; "default" is
// [DefaultAffinityTimeout]. A timeout without affinity means nothing, and is left out.
func (a SessionAffinity) MarshalText() ([]byte, error) {
	switch {
	case !a.ClientIP:
		return []byte("none"), nil
	case a.Timeout == 0:
		return []byte("default"), nil
	}
	return []byte(a.Timeout.String()), nil
}

// UnmarshalText is the inverse of MarshalText.
func (a *SessionAffinity) UnmarshalText(text []byte) error {
	switch string(text) {
	case "none":
		*a = SessionAffinity{}
		return nil
	case "default":
		*a = SessionAffinity{ClientIP: true}
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d == 0 {
		return fmt.Errorf("%q: must be none, default or a time such as 30s", text)
	}
	*a = SessionAffinity{ClientIP: true, Timeout: d}
	return nil
}

var (
	kinds    = []Kind{ClusterIP, LoadBalancer, ExternalIP, NodePort, HostIP}
	verdicts = []Verdict{Reject, Drop, BalanceCluster, BalanceLocal}
	outcomes = []Outcome{Untouched, Balanced, Rejected, Dropped}
)

// causes returns all kinds of causes.
func causes() []CauseKind {
	all := make([]CauseKind, CauseNoService+1)
	for i := range all {
		all[i] = CauseKind(i)
	}
	return all
}

// origins returns all sets of origins.
func origins() []Origins {
	all := make([]Origins, FromAnywhere+1)
	for i := range all {
		all[i] = Origins(i)
	}
	return all
}
