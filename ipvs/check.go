package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// foreignTable reports a table of another program with the companion's name. A commit would delete
// this table.
func (pl *planner) foreignTable() error {
	if object := pl.have.companion.foreign; object != "" {
		return &backends.CollisionError{Backend: Name, Object: object}
	}
	return nil
}

// collisions reports the virtual servers of other programs that collide with ours.
func (pl *planner) collisions(c *servicemodel.ChangeSet) error {
	if len(pl.have.foreign) == 0 {
		return nil
	}
	var errs []error
	addrs := nodePortAddrs(pl.have.addresses.node, c.New.Rules())
	for _, k := range pl.affected(c, addrs) {
		fe := c.New.Frontend(k)
		if fe == nil {
			continue
		}
		for _, s := range pl.servers(c.New, &record{fe: fe}, addrs) {
			if k := s.svc.ServiceKey; pl.have.foreign[k] && pl.have.claimable[k] == nil {
				errs = append(errs,
					&backends.CollisionError{Backend: Name, Service: fe.Service.Name,
						Object: fmt.Sprintf("virtual server %v", s.svc.ServiceKey)})
			}
		}
	}

	return errors.Join(errs...)
}

// noteUnusable remembers the endpoints that the kernel refused because of their addresses, and the
// schedulers that it lacks. It reports whether there are any, so that Check now refuses their
// services. Nothing works without the configured scheduler, so its absence is not remembered.
func (pl *planner) noteUnusable(ops []ipvsnl.Op, err error) (noted bool) {
	usual, _, _ := pl.cfg.Scheduler.Split()
	for _, e := range rawnl.Refusals(err) {
		switch o := ops[e.Index]; {
		case errors.Is(e, ipvsnl.ErrNotUnicast):
			pl.unusable[o.Destination.Addr] = true
			noted = true
		case errors.Is(e, ipvsnl.ErrNoModule) && o.Service.Scheduler != string(usual):
			pl.lacking[o.Service.Scheduler] = true
			noted = true
		}
	}

	return noted
}

// refused reports the services with an endpoint that the kernel has refused.
func (pl *planner) refused(c *servicemodel.ChangeSet) error {
	if len(pl.unusable) == 0 {
		return nil
	}
	var errs []error
	for _, p := range c.Pools {
		if p.New == nil {
			continue
		}
		for _, s := range p.New.Slots {
			if a := s.Endpoint.Addr(); pl.unusable[a] {
				n := p.New.ID.Service.Name
				errs = append(errs, &servicemodel.FieldError{Service: n,
					Object: "endpoints " + n.String(), Field: "addr", Value: a.String(),
					Reason: "is a broadcast address of this node, which IPVS does not take"})
			}
		}
	}

	return errors.Join(errs...)
}

// noIPv6 is the reason why IPv6 frontends are refused.
const noIPv6 = "IPv6 is disabled on this node"

// unreachable reports whether the kernel cannot deliver packets to a frontend because it has no
// IPv6, or cannot bind the frontend's address. Node ports need nothing if the node has no IPv6
// address.
func (o *observed) unreachable(k servicemodel.FrontendKey) bool {
	return !(o.ipv6 && o.binds6) && k.Addr.Is6() && !k.NodePort()
}

// disabled reports the family IPv6 if the kernel has none and a frontend needs it.
func (pl *planner) disabled(c *servicemodel.ChangeSet) error {
	if slices.ContainsFunc(c.Frontends, func(fc servicemodel.Change[servicemodel.Frontend]) bool {
		return fc.New != nil && pl.have.unreachable(fc.New.Key)
	}) {
		why := noIPv6 + " (net.ipv6.conf.lo.disable_ipv6 is 1, or it was disabled at boot)"
		if pl.have.ipv6 {
			why = fmt.Sprintf("IPv6 is disabled on the device %s, or for new devices "+
				"(net.ipv6.conf.default.disable_ipv6 is 1)", pl.cfg.Device)
		}

		return rendering.RefusedNode(Name, backends.FieldFamily, servicemodel.IPv6.String(), why)
	}

	return nil
}

// Check returns the parts of a change set that IPVS cannot express on any kernel. These are:
//
//   - schedulers that IPVS does not have, such as random;
//   - direct routing and tunnels, for node ports, ranges of ports, and endpoints at a port other
//     than the frontend's;
//   - ports at loopback addresses ([servicemodel.Node.LocalhostNodePorts]);
//   - masqueraded neighbours;
//   - under sh and mh, more endpoints than the table of mh has entries;
//   - affinity for a whole service, and affinity of prefixes where pods have separate endpoints;
//   - in tables that servicemodel.Resolve did not build: source ranges of node ports, and some
//     combinations of origins whose packets are masqueraded.
//
// The errors are *[backends.UnsupportedError] values, which [dataplane.Problems] lists. Check needs
// neither a kernel nor Linux. To check a whole table, pass servicemodel.Diff(nil, table).
func Check(c *servicemodel.ChangeSet) error { return check(c, "", nil) }

// check is Check with a scheduler for pools that request none, and for a kernel that lacks some
// schedulers.
func check(c *servicemodel.ChangeSet, usual servicemodel.Scheduler,
	lacking map[string]bool) error {
	if c == nil {
		return rendering.NoChanges(Name)
	}
	var loopback error
	if c.Rules != nil && c.Rules.New.LocalhostNodePorts {
		loopback = rendering.RefusedNode(Name, backends.FieldLocalhostNodePorts, "true",
			"IPVS sends nothing from a loopback address to another machine; node ports answer at "+
				"addresses of the node that others can reach")
	}

	forwarding, lacksMaglev := checkForwarding(c), lacking[string(servicemodel.Maglev)]
	return errors.Join(loopback, rendering.Check(Name, c, rendering.Abilities{
		Scheduler: func(s servicemodel.Scheduler) bool {
			name, _, _ := s.Split()
			return hasScheduler(s) && !lacking[string(name)]
		},
		SchedulerHint: "the kernel has no such scheduler", Ranges: true, MasqueradeIPs: true,
		Frontend: func(r *rendering.Refusals, fe *servicemodel.Frontend) {
			forwarding(r, fe)
			if fe.AffinityService {
				r.Refuse(fe.Service, backends.FieldAffinityService, "true", "IPVS remembers the "+
					"clients of each port; nftables and iptables can")
			}

			checkHashed(r, c.New, fe, lacksMaglev)
		},
		Pool: func(r *rendering.Refusals, p *servicemodel.Pool) {
			checkTable(r, p, cmp.Or(p.Scheduler, usual), lacksMaglev)
			for _, fe := range c.New.FrontendsOf(p.ID.Service) {
				if p.Forwarding != servicemodel.ForwardNAT {
					forwarding(r, fe)
				}
				if fe.Key.EndPort != 0 {
					checkHashed(r, c.New, fe, lacksMaglev)
				}
			}
		},
	}))
}

// checkHashed refuses affinity that a hash of the client cannot provide, at frontends whose virtual
// servers cannot remember clients.
func checkHashed(r *rendering.Refusals, t *servicemodel.Table, fe *servicemodel.Frontend,
	lacksMaglev bool) {
	if fe.Affinity == 0 {
		return
	}
	hashed := hashedClients(t, fe)
	if hashed != "" && fe.AffinityBits > 0 {
		r.Refuse(fe.Service, backends.FieldAffinityBits, fmt.Sprint(fe.AffinityBits), hashed+
			", affinity is a hash of the client's address; nftables and iptables can")
	}
	if hashed != "" && lacksMaglev {
		r.Refuse(fe.Service, backends.FieldSessionAffinity, "ClientIP",
			hashed+", it needs the scheduler mh, which the kernel does not have")
	}
}

// checkTable refuses pools under a scheduler that hashes, if its table has fewer entries than the
// pool has endpoints.
func checkTable(r *rendering.Refusals, p *servicemodel.Pool, by servicemodel.Scheduler,
	lacksMaglev bool) {
	name, _, _ := by.Split()
	entries, n := hashTables[name], len(p.Slots)
	switch {
	case n <= entries || entries == 0:
	case n > hashTables[servicemodel.Maglev]:
		r.Refuse(p.ID.Service, backends.FieldScheduler, string(by), fmt.Sprintf("%d endpoints, "+
			"and the kernel's table of mh has %d entries: the others would get nothing", n,
			hashTables[servicemodel.Maglev]))
	case lacksMaglev:
		r.Refuse(p.ID.Service, backends.FieldScheduler, string(by), fmt.Sprintf("%d endpoints, "+
			"and the table of sh has %d entries: more need the scheduler mh, which the kernel "+
			"does not have", n, entries))
	}
}

// checkForwarding refuses frontends whose packets would be forwarded unchanged, by direct routing
// or a tunnel, to endpoints at a port other than the frontend's. IPVS would accept them, and
// deliver the packets to the frontend's port (ip_vs_dr_xmit, ip_vs_tunnel_xmit).
func checkForwarding(c *servicemodel.ChangeSet) func(*rendering.Refusals, *servicemodel.Frontend) {
	seen := map[servicemodel.FrontendKey]bool{}
	return func(r *rendering.Refusals, fe *servicemodel.Frontend) {
		if what := forwardedElsewhere(c.New, fe); what != "" && !seen[fe.Key] {
			seen[fe.Key] = true
			r.Refuse(fe.Service, backends.FieldForwarding, what, "packets arrive as they were "+
				"sent: endpoints listen at the address and one port of the service")
		}
	}
}

// forwardedElsewhere returns the forwarding that would send packets to a frontend unchanged to a
// different port, or "".
func forwardedElsewhere(t *servicemodel.Table, fe *servicemodel.Frontend) string {
	for _, id := range poolIDs(fe) {
		p := t.Pool(id)
		if p == nil || p.Forwarding == servicemodel.ForwardNAT {
			continue
		}
		switch {
		case fe.Key.NodePort():
			return string(p.Forwarding) + " on a node port"
		case fe.Key.EndPort != 0:
			return string(p.Forwarding) + " on a range of ports"
		}
		for _, s := range p.Slots {
			if s.Endpoint.Port() != fe.Key.Port {
				return fmt.Sprintf("%v from port %d to %v", p.Forwarding, fe.Key.Port, s.Endpoint)
			}
		}
	}

	return ""
}
