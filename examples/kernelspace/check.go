package kernelspace

import (
	"errors"
	"strconv"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// Check returns the parts of a change set that HNS cannot express: SCTP, source ranges, host IPs,
// masquerading other than by default, schedulers other than source hash without options, weights,
// tunnels, endpoints of one pool with different ports, a restriction of node port addresses, and
// answers to clients without endpoints. Features are the abilities of the node. The errors are
// *[dataplane.UnsupportedError] values. Check needs no HNS.
func Check(c *servicemodel.ChangeSet, features Features) error {
	k := &checker{features: features, seen: map[dataplane.UnsupportedError]bool{}}
	if c.Rules != nil && c.Rules.New != nil {
		k.rules(c.Rules.New)
	}
	ipv6 := false
	for _, fc := range c.Frontends {
		if f := fc.New; f != nil {
			k.frontend(f)
			ipv6 = ipv6 || f.Key.Family() == servicemodel.IPv6
		}
	}
	for _, pc := range c.Pools {
		if pc.New != nil {
			k.pool(c.New, pc.New)
		}
	}
	if r := c.New.Rules(); ipv6 && !features.IPv6DualStack && r.OnlyFamily == 0 {
		k.node(dataplane.FieldFamily, servicemodel.IPv6.String(), "needs HNS 11.10")
	}
	return errors.Join(k.errs...)
}

// checker collects refusals.
type checker struct {
	features Features
	errs     []error
	seen     map[dataplane.UnsupportedError]bool
}

func (k *checker) add(e dataplane.UnsupportedError) {
	e.Backend = Name
	if !k.seen[e] {
		k.seen[e] = true
		k.errs = append(k.errs, &e)
	}
}

func (k *checker) node(field, value, hint string) {
	k.add(dataplane.UnsupportedError{Object: "node", Field: field, Value: value, Hint: hint})
}

func (k *checker) service(of servicemodel.PortName, field, value, hint string) {
	k.add(dataplane.UnsupportedError{Service: of.Name, Object: "service " + of.String(),
		Field: field, Value: value, Hint: hint})
}

func (k *checker) rules(r *servicemodel.Rules) {
	for _, p := range r.NodePorts {
		if p.Bits() > 0 {
			k.node("nodePortAddresses", p.String(), "HNS has node ports at all addresses")
		}
	}
	if len(r.ServiceCIDRs) > 0 {
		k.node("serviceCIDRs", r.ServiceCIDRs[0].String(), "HNS drops nothing")
	}
	if r.LocalhostNodePorts {
		k.node(dataplane.FieldLocalhostNodePorts, "true", "")
	}
	if r.MasqueradeNeighbours {
		k.node(dataplane.FieldMasqueradeNeighbours, "true", "")
	}
	if r.NoEndpoints != "" {
		k.node(dataplane.FieldNoEndpoints, r.NoEndpoints, "HNS does not answer")
	}
	if r.Forbidden != "" {
		k.node(dataplane.FieldForbidden, r.Forbidden, "HNS does not answer")
	}
}

func (k *checker) frontend(f *servicemodel.Frontend) {
	if protocols[f.Key.Protocol] == 0 {
		k.service(f.Service, dataplane.FieldProtocol, f.Key.Protocol.String(),
			"HNS balances tcp and udp")
	}
	if f.Kind == servicemodel.HostIP {
		k.service(f.Service, "hostIPs", f.Key.Addr.String(), "a node port answers at all addresses")
	}
	if f.Sources != nil {
		k.service(f.Service, dataplane.FieldSources, f.Sources[0].String(),
			"HNS does not tell clients apart")
	}
	if f.Affinity > 0 && !k.features.SessionAffinity {
		k.service(f.Service, dataplane.FieldSessionAffinity, "ClientIP", "needs HNS 12.0")
	}
	if f.AffinityBits > 0 {
		k.service(f.Service, dataplane.FieldAffinityBits, strconv.Itoa(int(f.AffinityBits)),
			"HNS hashes the whole address of a client")
	}
	if f.AffinityService {
		k.service(f.Service, dataplane.FieldAffinityService, "true",
			"HNS chooses for each port by itself")
	}
	if !usual(f) {
		k.service(f.Service, dataplane.FieldMasquerade, f.Masquerade.String(),
			"HNS decides that itself")
	}
	if f.Kind != servicemodel.ClusterIP && f.External == servicemodel.BalanceLocal &&
		!k.features.DSR {
		k.service(f.Service, "externalTrafficPolicy", "Local", "needs HNS 9.3 or 10.2")
	}
}

// usual reports whether f is masqueraded as by [servicemodel.MasqueradeDefault].
func usual(f *servicemodel.Frontend) bool {
	const notPods = servicemodel.FromHost | servicemodel.FromOutside
	switch {
	case f.Kind == servicemodel.ClusterIP:
		return f.Masquerade == 0 || f.Masquerade == notPods
	case f.External == servicemodel.BalanceLocal || f.External == servicemodel.Drop:
		return f.Masquerade == servicemodel.FromHost
	case f.External == servicemodel.BalanceCluster:
		return f.Masquerade == servicemodel.FromAnywhere
	}
	return f.Masquerade == servicemodel.FromHost || f.Masquerade == servicemodel.FromAnywhere
}

func (k *checker) pool(t *servicemodel.Table, p *servicemodel.Pool) {
	of := p.ID.Service
	switch p.Scheduler {
	case servicemodel.SchedulerDefault:
	case servicemodel.SourceHash:
		if !k.features.SessionAffinity {
			k.service(of, dataplane.FieldScheduler, string(p.Scheduler), "needs HNS 12.0")
		}
	default:
		k.service(of, dataplane.FieldScheduler, string(p.Scheduler),
			"HNS hashes the connection, or with sh the client")
	}
	switch p.Forwarding {
	case servicemodel.ForwardNAT:
	case servicemodel.ForwardDirect:
		for _, f := range t.FrontendsOf(of) {
			if f.Kind != servicemodel.ClusterIP && f.External == servicemodel.BalanceCluster ||
				!k.features.DSR {
				k.service(of, dataplane.FieldForwarding, string(p.Forwarding),
					"needs external traffic policy Local, and HNS 9.3 or 10.2")
			}
		}
	default:
		k.service(of, dataplane.FieldForwarding, string(p.Forwarding), "")
	}
	for _, s := range p.Slots {
		if s.Weight != 1 {
			k.service(of, dataplane.FieldWeights, strconv.Itoa(int(s.Weight)),
				"HNS gives each endpoint the same share")
		}
		if s.Endpoint.Port() != p.Slots[0].Endpoint.Port() {
			k.service(of, "endpoints", "ports "+strconv.Itoa(int(p.Slots[0].Endpoint.Port()))+
				" and "+strconv.Itoa(int(s.Endpoint.Port())),
				"HNS has one port for all endpoints of a load balancer")
		}
	}
}
