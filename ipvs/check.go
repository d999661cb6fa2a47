package ipvs

import (
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// collisions reports the virtual servers of others that are where a commit must put one of ours.
func (pl *planner) collisions(c *servicemodel.ChangeSet) error {
	if len(pl.have.foreign) == 0 {
		return nil
	}
	var errs []error
	addrs := nodePortAddrs(pl.have.addresses.node, c.New.Rules())
	for _, k := range pl.affected(c, addrs) {
		fe := shared.Of(c.New).Frontend(k)
		if fe == nil {
			continue
		}
		for _, s := range pl.servers(c.New, fe, addrs, 0) {
			if k := s.svc.ServiceKey; pl.have.foreign[k] && pl.have.claimable[k] == nil {
				errs = append(errs,
					&dataplane.CollisionError{Backend: Name, Service: fe.Service.Name,
						Object: fmt.Sprintf("virtual server %v", s.svc.ServiceKey)})
			}
		}
	}
	return errors.Join(errs...)
}

// check reports what of a change set IPVS cannot express.
func check(c *servicemodel.ChangeSet) error {
	var errs []error
	refuse := func(of servicemodel.PortName, field, value, hint string) {
		errs = append(errs,
			&dataplane.UnsupportedError{Backend: Name, Service: of.Name,
				Object: "service " + of.String(), Field: field, Value: value, Hint: hint})
	}
	for _, fc := range c.Frontends {
		fe := fc.New
		if fe == nil {
			continue
		}
		switch fe.Masquerade {
		case 0, servicemodel.FromAnywhere, servicemodel.FromHost, servicemodel.FromHost |
			servicemodel.FromOutside:
		default:
			refuse(fe.Service, "masquerade", fe.Masquerade.String(), "")
		}
		if fe.Sources != nil && fe.Key.NodePort() {
			refuse(fe.Service, "sources", "on a node port", "")
		}
	}
	for _, pc := range c.Pools {
		if p := pc.New; p != nil && p.Scheduler != servicemodel.SchedulerDefault &&
			!hasScheduler(p.Scheduler) {
			refuse(p.ID.Service, "scheduler", string(p.Scheduler),
				"the kernel has no such scheduler")
		}
	}
	for _, r := range routedElsewhere(c) {
		refuse(r.fe.Service, "forwarding", r.what,
			"packets arrive as they were sent: endpoints listen at the address and port of the "+
				"service")
	}
	if c.Rules != nil {
		errs = append(errs, checkRules(&c.Rules.New)...)
	}
	return errors.Join(errs...)
}

// checkRules reports what of the node-wide rules cannot be expressed.
func checkRules(r *servicemodel.Rules) (errs []error) {
	refuse := func(field, hint string) {
		errs = append(errs, &dataplane.UnsupportedError{Backend: Name, Object: "node",
			Field: field, Value: "true", Hint: hint})
	}
	if r.LocalhostNodePorts {
		refuse("localhostNodePorts", "IPVS sends nothing from a loopback address to another "+
			"machine; node ports answer at addresses of the node that others can reach")
	}
	if r.MasqueradeNeighbours {
		refuse("masqueradeNeighbours", "nftables can")
	}
	return errs
}

// routed is a frontend whose packets cannot be forwarded unchanged.
type routed struct {
	fe   *servicemodel.Frontend
	what string
}

// routedElsewhere returns the frontends whose packets are to be forwarded unchanged, by direct
// routing or a tunnel, to endpoints that do not listen at the frontend's port. IPVS would take
// them, and deliver to the port of the frontend (ip_vs_dr_xmit, ip_vs_tunnel_xmit).
func routedElsewhere(c *servicemodel.ChangeSet) []routed {
	var l []routed
	seen := map[servicemodel.FrontendKey]bool{}
	look := func(fe *servicemodel.Frontend) {
		if seen[fe.Key] {
			return
		}
		seen[fe.Key] = true
		for _, id := range poolIDs(fe) {
			p := shared.Of(c.New).Pool(id)
			if p == nil || p.Forwarding == servicemodel.ForwardNAT {
				continue
			}
			if fe.Key.NodePort() {
				l = append(l, routed{fe, p.Forwarding.String() + " on a node port"})
				return
			}
			for _, s := range p.Slots {
				if s.Endpoint.Port() != fe.Key.Port {
					l = append(l,
						routed{fe, fmt.Sprintf("%v from port %d to %v", p.Forwarding, fe.Key.Port,
							s.Endpoint)})
					return
				}
			}
		}
	}
	for _, fc := range c.Frontends {
		if fc.New != nil {
			look(fc.New)
		}
	}
	for _, pc := range c.Pools {
		if pc.New == nil || pc.New.Forwarding == servicemodel.ForwardNAT {
			continue
		}
		for _, fe := range shared.Of(c.New).FrontendsOf(pc.New.ID.Service) {
			look(fe)
		}
	}
	return l
}
