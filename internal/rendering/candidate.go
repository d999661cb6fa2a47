package rendering

import (
	"context"
	"net/netip"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Candidate returns the candidate of a backend. probe asks the kernel whether it supports the
// backend. Afterwards the backend is closed.
func Candidate[B backends.Backend](name string, open func() (B, error),
	probe func(B, context.Context) error) backends.Candidate {
	return backends.Candidate{
		Name: name,
		Probe: func(ctx context.Context) error {
			b, err := open()
			if err != nil {
				return err
			}
			defer b.Close()
			return probe(b, ctx)
		},
		Open: func() (backends.Backend, error) {
			b, err := open()
			if err != nil {
				return nil, err // not b: a nil pointer is not a nil interface
			}
			return b, nil
		},
	}
}

// Changes returns changes that use every mandatory part of a backend's ruleset: both families, each
// kind of frontend and verdict, masquerading, and source ranges. sticky adds session affinity. only
// limits the changes to one family, unless it is zero. The addresses are from the ranges for
// documentation (RFC 5737, RFC 3849).
func Changes(sticky bool, only servicemodel.Family) (*servicemodel.ChangeSet, error) {
	node := servicemodel.Node{
		Name: "this", OnlyFamily: only, Addresses: addrs("192.0.2.1", "2001:db8::1"),
		LocalPods: servicemodel.PodDetector{
			CIDRs: prefixes("192.0.2.128/25", "2001:db8:1::/64")},
		ServiceCIDRs: prefixes("198.51.100.0/24", "2001:db8:2::/64"),
	}
	port := []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP, Port: 80,
		NodePort: 30080}}
	full := &servicemodel.Service{
		Name: servicemodel.Name{Namespace: "kernlb", Name: "probe"}, Ports: port,
		ClusterIPs:               addrs("198.51.100.1", "2001:db8:2::1"),
		ExternalTrafficPolicy:    servicemodel.PolicyLocal,
		LoadBalancerSourceRanges: prefixes("203.0.113.0/24", "2001:db8:3::/64"),
	}
	for _, a := range addrs("203.0.113.1", "2001:db8:3::1") {
		full.LoadBalancerIPs = append(full.LoadBalancerIPs, servicemodel.LoadBalancerIP{Addr: a})
	}
	if sticky {
		full.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true, Timeout: time.Minute}
	}
	empty := &servicemodel.Service{
		Name:       servicemodel.Name{Namespace: "kernlb", Name: "probe-empty"},
		ClusterIPs: addrs("198.51.100.2", "2001:db8:2::2"),
		Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP,
			Port: 80}},
	}
	var eps []servicemodel.Endpoint
	for i, a := range addrs("192.0.2.129", "192.0.2.130", "2001:db8:1::1", "2001:db8:1::2") {
		eps = append(eps, servicemodel.Endpoint{Addr: a,
			Node: []string{"this", "other"}[i%2],
			Ports: []servicemodel.EndpointPort{{Name: "http", Protocol: servicemodel.TCP,
				Port: 8080}}})
	}

	t, err := servicemodel.Resolve(nil, servicemodel.State{}.WithNode(node).WithService(full).
		WithEndpoints(full.Name, eps).WithService(empty))
	if err != nil {
		return nil, err
	}
	return servicemodel.Diff(nil, t), nil
}

func addrs(l ...string) (out []netip.Addr) {
	for _, s := range l {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(l ...string) (out []netip.Prefix) {
	for _, s := range l {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}
