package kernelspace

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// Check returns the parts of a change set that HNS cannot express: SCTP, ranges of ports, source
// ranges, host IPs, masquerading other than by default, schedulers other than source hash without
// options, weights, tunnels, endpoints of one pool with different ports, a restriction of node port
// addresses, and answers to clients without endpoints. Features are the abilities of the node. The
// errors are *[backends.UnsupportedError] values. Check needs no HNS.
func Check(c *servicemodel.ChangeSet, features Features) error {
	k := &checker{features: features, seen: map[backends.UnsupportedError]bool{}}
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
		k.refuse(servicemodel.PortName{}, refusal{true, backends.FieldFamily,
			servicemodel.IPv6.String(), "needs HNS 11.10"})
	}

	return errors.Join(k.errs...)
}

// checker collects refusals.
type checker struct {
	features Features
	errs     []error
	seen     map[backends.UnsupportedError]bool
}

// refusal is a field that HNS cannot express if is is true.
type refusal struct {
	is                 bool
	field, value, hint string
}

// refuse refuses fields of a service, or of the node if there is no service, once each.
func (k *checker) refuse(of servicemodel.PortName, l ...refusal) {
	object := "node"
	if of.Name != (servicemodel.Name{}) {
		object = "service " + of.String()
	}
	for _, r := range l {
		e := backends.UnsupportedError{Backend: Name, Service: of.Name, Object: object,
			Field: r.field, Value: r.value, Hint: r.hint}
		if r.is && !k.seen[e] {
			k.seen[e] = true
			k.errs = append(k.errs, &e)
		}
	}
}

func (k *checker) rules(r *servicemodel.Rules) {
	for _, p := range r.NodePorts {
		k.refuse(servicemodel.PortName{}, refusal{p.Bits() > 0, "nodePortAddresses", p.String(),
			"HNS has node ports at all addresses"})
	}

	for _, p := range r.ServiceCIDRs {
		k.refuse(servicemodel.PortName{}, refusal{true, "serviceCIDRs", p.String(),
			"HNS drops nothing"})
	}

	k.refuse(servicemodel.PortName{},
		refusal{r.LocalhostNodePorts, backends.FieldLocalhostNodePorts, "true", ""},
		refusal{r.MasqueradeNeighbours, backends.FieldMasqueradeNeighbours, "true", ""},
		refusal{r.NoEndpoints == "drop", backends.FieldNoEndpoints, r.NoEndpoints,
			"HNS does not answer"},
		refusal{r.Forbidden != "", backends.FieldForbidden, r.Forbidden, "HNS does not answer"})
}

func (k *checker) frontend(f *servicemodel.Frontend) {
	for _, s := range f.Sources {
		k.refuse(f.Service, refusal{true, backends.FieldSources, s.String(),
			"HNS does not tell clients apart"})
	}

	k.refuse(f.Service,
		refusal{protocols[f.Key.Protocol] == 0, backends.FieldProtocol, f.Key.Protocol.String(),
			"HNS balances tcp and udp"},
		refusal{f.Key.EndPort != 0, backends.FieldEndPort, strconv.Itoa(int(f.Key.EndPort)),
			"HNS has a load balancer for each port"},
		refusal{f.Kind == servicemodel.HostIP, "hostIPs", f.Key.Addr.String(),
			"a node port answers at all addresses"},
		refusal{f.Affinity > 0 && !k.features.SessionAffinity, backends.FieldSessionAffinity,
			"ClientIP", "needs HNS 12.0"},
		refusal{f.AffinityBits > 0, backends.FieldAffinityBits, strconv.Itoa(int(f.AffinityBits)),
			"HNS hashes the whole address of a client"},
		refusal{f.AffinityService, backends.FieldAffinityService, "true",
			"HNS chooses for each port by itself"},
		refusal{!usual(f), backends.FieldMasquerade, f.Masquerade.String(),
			"HNS decides that itself"},
		refusal{f.MasqueradeIP.IsValid(), backends.FieldMasqueradeIPs, f.MasqueradeIP.String(),
			"HNS decides that itself"},
		refusal{f.Kind != servicemodel.ClusterIP && f.External == servicemodel.BalanceLocal &&
			!k.features.DSR, "externalTrafficPolicy", "Local", "needs HNS 9.3 or 10.2"})
}

// usual reports whether f is masqueraded as with [servicemodel.MasqueradeDefault].
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
	hashes := p.Scheduler == servicemodel.SourceHash
	direct := p.Forwarding == servicemodel.ForwardDirect
	outside := func(f *servicemodel.Frontend) bool {
		return f.Kind != servicemodel.ClusterIP && f.External == servicemodel.BalanceCluster
	}
	k.refuse(of,
		refusal{hashes && !k.features.SessionAffinity, backends.FieldScheduler,
			string(p.Scheduler), "needs HNS 12.0"},
		refusal{!hashes && p.Scheduler != servicemodel.SchedulerDefault, backends.FieldScheduler,
			string(p.Scheduler), "HNS hashes the connection, or with sh the client"},
		refusal{direct && (!k.features.DSR || slices.ContainsFunc(t.FrontendsOf(of), outside)),
			backends.FieldForwarding, string(p.Forwarding),
			"needs external traffic policy Local, and HNS 9.3 or 10.2"},
		refusal{!direct && p.Forwarding != servicemodel.ForwardNAT, backends.FieldForwarding,
			string(p.Forwarding), ""})
	port := p.Slots[0].Endpoint.Port()
	for _, s := range p.Slots {
		k.refuse(of, refusal{s.Weight != 1, backends.FieldWeights, strconv.Itoa(int(s.Weight)),
			"HNS gives each endpoint the same share"},
			refusal{s.Endpoint.Port() != port, "endpoints",
				fmt.Sprintf("ports %d and %d", port, s.Endpoint.Port()),
				"HNS has one port for all endpoints of a load balancer"})
	}
}
