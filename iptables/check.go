package iptables

import (
	"errors"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// Check returns the parts of a change set that iptables cannot express on any kernel. These are:
//
//   - schedulers other than random, round robin and source hash;
//   - forwarding other than NAT;
//   - masqueraded neighbours;
//   - in tables that servicemodel.Resolve did not build: source ranges of node ports, and different
//     affinity timeouts at the addresses of one service port.
//
// The errors are *[backends.UnsupportedError] values, which [dataplane.Problems] lists. Check needs
// neither a kernel nor Linux. To check a whole table, pass servicemodel.Diff(nil, table).
func Check(c *servicemodel.ChangeSet) error { return check(c, &lacking{}) }

// check is Check for a kernel that lacks some features.
func check(c *servicemodel.ChangeSet, lacks *lacking) error {
	if c == nil {
		return rendering.NoChanges(Name)
	}
	var family error
	if err := lacks.family; err != nil && needs(c, lacks.lacking) {
		family = rendering.RefusedNode(Name, backends.FieldFamily, lacks.lacking.Model.String(),
			err.Error())
	}

	return errors.Join(family, rendering.Check(Name, c, rendering.Abilities{
		Scheduler: func(s servicemodel.Scheduler) bool {
			name, _, _ := s.Split()
			return s == servicemodel.Random || s == servicemodel.RoundRobin ||
				name == servicemodel.SourceHash && !lacks.bpf
		},
		SchedulerHint: "iptables chooses at random, in turn, or by a hash of the client if it " +
			"has xt_bpf",
		ForwardingHint: "iptables translates addresses", AnyOrigins: true, Ranges: true,
		Shifted: true,
		Frontend: func(r *rendering.Refusals, fe *servicemodel.Frontend) {
			if fe.Affinity > 0 && lacks.recent {
				r.Refuse(fe.Service, backends.FieldSessionAffinity, "ClientIP",
					"the kernel lacks xt_recent")
			}

			if fe.Key.Protocol == servicemodel.SCTP && lacks.sctp {
				r.Refuse(fe.Service, backends.FieldProtocol, "sctp", "the kernel lacks xt_sctp")
			}
			if affinityOf(fe) != commonAffinity(c.New, fe) {
				r.Refuse(fe.Service, backends.FieldAffinityTimeout, fe.Affinity.String(),
					"all addresses of a service port remember clients alike")
			}
		},
	}))
}

// lacking has the features that the kernel lacks.
type lacking struct {
	recent bool // xt_recent
	sctp   bool // xt_sctp
	bpf    bool // xt_bpf
	// family is the reason why the kernel cannot have chains of the family lacking. It is nil if
	// the kernel can have chains of both families.
	family  error
	lacking *nft.Family
}

// needs reports whether a change set needs chains of a family that the node need not serve.
func needs(c *servicemodel.ChangeSet, f *nft.Family) bool {
	r, i := c.New.Rules(), nft.FamilyIndex(f.Any)
	return r.OnlyFamily == 0 && (f == homeOf(&r) && r.MasqueradeMark != 0 ||
		len(f.Own(r.ServiceCIDRs)) > 0 || slices.ContainsFunc(c.Frontends,
		func(fc servicemodel.Change[servicemodel.Frontend]) bool {
			return fc.New != nil && fc.New.Key.Family() == f.Model
		}) || slices.ContainsFunc(c.Health,
		func(hc servicemodel.Change[servicemodel.HealthCheck]) bool {
			return hc.New != nil && *served(hc.New, i) != servicemodel.NotServed
		}))
}

// commonAffinity returns the affinity of the first frontend of the same service port and family.
func commonAffinity(t *servicemodel.Table, fe *servicemodel.Frontend) affinity {
	for _, o := range t.FrontendsOf(fe.Service) {
		if o.Key.Family() == fe.Key.Family() {
			return affinityOf(o)
		}
	}

	return affinityOf(fe)
}
