package ipvs

import (
	"errors"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// check refuses what cannot be expressed.
func check(c *servicemodel.ChangeSet) error {
	var errs []error
	refuse := func(object, field, value, hint string) {
		errs = append(errs, &dataplane.UnsupportedError{Backend: Name, Object: object, Field: field, Value: value, Hint: hint})
	}
	for _, fc := range c.Frontends {
		fe := fc.New
		if fe == nil {
			continue
		}
		object := "service " + fe.Service.String()
		switch fe.Masquerade {
		case 0, servicemodel.FromAnywhere, servicemodel.FromHost, servicemodel.FromHost | servicemodel.FromOutside:
		default:
			refuse(object, "masquerade", fe.Masquerade.String(), "")
		}
		if fe.Sources != nil && fe.Key.NodePort() {
			refuse(object, "sources", "on a node port", "")
		}
		if n := len(fe.Service.String()) + maxCommentWords; n > 251 {
			refuse(object, "name", fe.Service.String(), "it is too long for a comment")
		}
	}
	for _, pc := range c.Pools {
		if p := pc.New; p != nil && p.Scheduler != servicemodel.SchedulerDefault && !schedules(p.Scheduler) {
			refuse("service "+p.ID.Service.String(), "scheduler", string(p.Scheduler), "the nftables and iptables backends can")
		}
	}
	for _, r := range routedElsewhere(c) {
		refuse("service "+r.fe.Service.String(), "forwarding", r.what, "packets arrive as they were sent: endpoints listen at the address and port of the service")
	}
	if c.Rules != nil && c.Rules.New.LocalhostNodePorts {
		refuse("node", "localhostNodePorts", "true", "the iptables backend can")
	}
	return errors.Join(errs...)
}

// routed is a frontend whose packets cannot be forwarded unchanged.
type routed struct {
	fe   *servicemodel.Frontend
	what string
}

// routedElsewhere returns the frontends whose packets are to be forwarded unchanged, by direct routing or a tunnel, to endpoints that do not listen at
// the frontend's port. IPVS would take them, and deliver to the port of the frontend (ip_vs_dr_xmit, ip_vs_tunnel_xmit).
func routedElsewhere(c *servicemodel.ChangeSet) []routed {
	var l []routed
	seen := map[servicemodel.FrontendKey]bool{}
	look := func(fe *servicemodel.Frontend) {
		if seen[fe.Key] {
			return
		}
		seen[fe.Key] = true
		for _, id := range poolIDs(fe) {
			p := c.New.Pool(id)
			if p == nil || p.Forwarding == servicemodel.ForwardNAT {
				continue
			}
			if fe.Key.NodePort() {
				l = append(l, routed{fe, p.Forwarding.String() + " on a node port"})
				return
			}
			for _, s := range p.Slots {
				if s.Endpoint.Port() != fe.Key.Port {
					l = append(l, routed{fe, fmt.Sprintf("%v from port %d to %v", p.Forwarding, fe.Key.Port, s.Endpoint)})
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
		for _, fe := range c.New.FrontendsOf(pc.New.ID.Service) {
			look(fe)
		}
	}
	return l
}

// maxCommentWords is how long the words of a comment behind the service's name are at most.
const maxCommentWords = 100
