package flows

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// departures are endpoints that get no new flows from a frontend. Their existing flows may continue
// for some time, or as long as the endpoints serve.
type departures map[netip.AddrPort]departure

type departure struct {
	service servicemodel.PortName
	// at is the time at which the flows are deleted. Zero means no deadline.
	at time.Time
	// lingers says that the flows are deleted when the endpoint no longer serves.
	lingers bool
}

// inspection finds the flows that one change affects.
type inspection struct {
	*Keeper
	change    *servicemodel.ChangeSet
	now       time.Time
	left      map[[2]pools][]netip.AddrPort   // results of leftOf
	lingering map[servicemodel.Name]lingering // results of lingeringOf
	pending   dueRanges                       // since earlier changes
}

// lingering are the endpoints of the ports of a service that terminate or are quiesced, but still
// serve.
type lingering map[servicemodel.EndpointPort]map[netip.AddrPort]bool

// lingeringOf returns the endpoints of a service port that terminate or are quiesced, but still
// serve.
func (in *inspection) lingeringOf(n servicemodel.PortName) map[netip.AddrPort]bool {
	port := servicemodel.EndpointPort{Name: n.Port, Protocol: n.Protocol}
	if known, ok := in.lingering[n.Name]; ok {
		return known[port]
	}
	found := lingering{}
	svc, eps := in.state.Peek(n.Name)
	for e := range eps {
		if e.Condition != servicemodel.Serving && e.Condition != servicemodel.Quiesced {
			continue
		}
		for _, p := range e.Ports {
			at := netip.AddrPortFrom(e.Addr, svc.TargetPort(p))
			p.Port = 0
			if found[p] == nil {
				found[p] = map[netip.AddrPort]bool{}
			}
			found[p][at] = true
		}
	}

	in.lingering[n.Name] = found
	return found[port]
}

// inspectAll handles every frontend that the change touches.
func (in *inspection) inspectAll() {
	for _, f := range in.change.Frontends {
		if f.New != nil {
			in.inspect(f.New.Key)
		} else {
			in.inspect(f.Old.Key)
		}
	}

	for i := range in.change.Pools {
		p := &in.change.Pools[i]
		if p.Old == nil || p.New == nil {
			continue // its frontends changed their pool, so they are in the list above
		}
		for _, f := range in.change.New.FrontendsOf(p.New.ID.Service) {
			if f.Key.Family() == p.New.ID.Family && in.concerned(f.Key, p) {
				in.inspect(f.Key)
			}
		}
	}
}

// concerned reports whether the change of a pool matters to a frontend: because an endpoint left or
// came back.
func (in *inspection) concerned(key servicemodel.FrontendKey,
	p *servicemodel.Change[servicemodel.Pool]) bool {
	if len(in.departed[key]) > 0 {
		return true
	}
	for s := range p.New.SlotsSince(p.Old) {
		if s.Old.Endpoint.IsValid() && s.Old.Endpoint != s.New.Endpoint {
			return true
		}
	}

	return false
}

// inspect handles one frontend. It may be called more than once for the same frontend.
func (in *inspection) inspect(key servicemodel.FrontendKey) {
	old, new := in.change.Old.Frontend(key), in.change.New.Frontend(key)
	was, is := poolsOf(in.change.Old, old), poolsOf(in.change.New, new)
	if departed := in.departed[key]; len(departed) > 0 {
		for _, e := range is.endpoints() {
			delete(departed, e)
		}
	}

	if key.Protocol == servicemodel.UDP && was.empty() && !is.empty() {
		s := in.find(key, new.Service)
		s.all, s.fresh = true, true
	}

	switch udp := key.Protocol == servicemodel.UDP; {
	case udp && old == nil && new != nil && (inRange(in.change.Old, key) || in.inPending(key)):
		in.find(key, new.Service).all = true
	case udp && old != nil && new == nil && was.empty() && inRange(in.change.New, key):
		in.find(key, old.Service).all = true
	}
	in.shifted(old, new)
	for _, e := range in.leftOf(was, is) {
		in.removed(key, old.Service, e, new != nil && in.lingeringOf(old.Service)[e])
	}
}

// shifted handles a range that was mapped to ranges at its endpoints and no longer is, or vice
// versa, because that changes the ports of endpoints that stay.
func (in *inspection) shifted(old, new *servicemodel.Frontend) {
	if old == nil || new == nil || old.Shifted == new.Shifted {
		return
	}
	cut := in.policy(new.Service.Name).Mode == servicemodel.CutConnections
	if cut || new.Key.Protocol == servicemodel.UDP {
		in.find(new.Key, new.Service).all = true
	}
}

// inRange reports whether a range of a table has the first or the last port of a frontend, at its
// address or as node ports. The frontend takes ports from the range, or loses ports to it.
func inRange(t *servicemodel.Table, key servicemodel.FrontendKey) bool {
	for _, a := range []netip.Addr{key.Addr, anywhere(key).Addr} {
		if len(t.RangesAt(a, key.Protocol, key.Port)) > 0 ||
			len(t.RangesAt(a, key.Protocol, key.LastPort())) > 0 {
			return true
		}
	}

	return false
}

// inPending reports whether a range that is still due has the first or the last port of a new
// frontend. Perhaps the range was removed before.
func (in *inspection) inPending(key servicemodel.FrontendKey) bool {
	for _, port := range []uint16{key.Port, key.LastPort()} {
		at := key
		at.Port, at.EndPort = port, 0
		if len(in.pending.around(at))+len(in.pending.around(anywhere(at))) > 0 {
			return true
		}
	}

	return false
}

// leftOf returns the endpoints that a change removed from a frontend. Frontends with the same pools
// share the result.
func (in *inspection) leftOf(was, is pools) []netip.AddrPort {
	key := [2]pools{was, is}
	left, known := in.left[key]
	if !known {
		stays := map[netip.AddrPort]bool{}
		for _, e := range is.endpoints() {
			stays[e] = true
		}
		left = slices.DeleteFunc(was.endpoints(), func(e netip.AddrPort) bool { return stays[e] })
		in.left[key] = left
	}

	return left
}

// removed deletes, drains or keeps the flows from a frontend to an endpoint that was removed from
// it.
func (in *inspection) removed(key servicemodel.FrontendKey, n servicemodel.PortName,
	e netip.AddrPort, lingers bool) {
	udp := key.Protocol == servicemodel.UDP
	d := departure{service: n, lingers: udp}
	switch p := in.policy(n.Name); {
	case udp && !lingers, p.Mode == servicemodel.CutConnections:
		in.delete(key, n, e)
		return
	case p.Mode == servicemodel.DrainConnections:
		d.at = in.now.Add(p.Drain)
	case !udp:
		return // the connection continues without a deadline
	}

	in.depart(key, e, d)
}

// depart records a departure. A departure that is already known keeps its deadline.
func (k *Keeper) depart(key servicemodel.FrontendKey, e netip.AddrPort, d departure) {
	if k.departed[key] == nil {
		k.departed[key] = departures{}
	}
	if _, known := k.departed[key][e]; !known {
		k.departed[key][e] = d
	}
}

// delete makes the flows of a departed endpoint due. For UDP, every flow of the frontend to a wrong
// endpoint becomes due. For connections, only flows to this endpoint become due, because policies
// may allow connections to other departed endpoints.
func (k *Keeper) delete(key servicemodel.FrontendKey, n servicemodel.PortName, e netip.AddrPort) {
	s := k.find(key, n)
	if key.Protocol == servicemodel.UDP {
		s.all = true
		return
	}

	s.gone = append(s.gone, e)
}

// review deletes the flows of lingering endpoints that no longer serve, or whose frontend was
// removed. Draining connections keep their deadline.
func (in *inspection) review() {
	for key, list := range in.departed {
		gone := in.services.Frontend(key) == nil
		for e, d := range list {
			if d.lingers && (gone || !in.lingeringOf(d.service)[e]) {
				delete(list, e)
				in.delete(key, d.service, e)
			}
		}
	}
}

// checkAll makes a new keeper check every UDP frontend, and every frontend whose connections are
// cut. An earlier process may have stopped between a commit and the cleanup. The check finds only
// flows that are certainly stale: they were sent to one of our frontends, and that frontend does
// not have their endpoint.
func (in *inspection) checkAll() {
	for f := range in.change.New.Frontends() {
		switch mode := in.policy(f.Service.Name).Mode; {
		case f.Key.Protocol == servicemodel.UDP:
			in.find(f.Key, f.Service).all = true
			in.keepLingering(f)
		case mode == servicemodel.CutConnections:
			in.find(f.Key, f.Service).all = true
		case mode == servicemodel.DrainConnections:
			if !slices.Contains(in.unknown, f.Key.Protocol) {
				in.unknown = append(in.unknown, f.Key.Protocol)
			}
		}
	}
}

// keepLingering keeps the flows of endpoints that began to terminate before this keeper started.
func (in *inspection) keepLingering(f *servicemodel.Frontend) {
	all := in.lingeringOf(f.Service)
	if len(all) == 0 {
		return
	}
	used := poolsOf(in.change.New, f).endpoints()
	for e := range all {
		if servicemodel.FamilyOf(e.Addr()) == f.Key.Family() && !slices.Contains(used, e) {
			in.removed(f.Key, f.Service, e, true)
		}
	}
}

// findDeparted searches once for connections to endpoints that departed before the keeper started.
// The drain time of these connections begins now.
func (k *Keeper) findDeparted(ctx context.Context) error {
	if len(k.unknown) == 0 {
		return nil
	}
	node, err := k.table.NodeAddrs(k.rules.NodePorts)
	if err != nil {
		return err
	}
	index := NewIndex(k.services, node)
	index.zone = k.cfg.Zone
	for _, protocol := range k.unknown {
		for f, err := range k.table.Flows(ctx,
			conntrack.Filter{Protocol: conntrack.Protocol(protocol)}) {
			if err != nil {
				return err
			}
			own := index.Frontend(&f)

			// Flows with fixed timeouts are left from a cut: they answer packets that the two peers
			// still send.
			if own == nil || !f.Translated() || f.Status&conntrack.StatusFixedTimeout != 0 ||
				index.Serves(own, &f) {
				continue
			}

			if p := k.policy(own.Service.Name); p.Mode == servicemodel.DrainConnections {
				k.depart(own.Key, endpointOf(own, &f), departure{service: own.Service,
					at: time.Now().Add(p.Drain)})
			}
		}
	}

	k.unknown = nil
	return nil
}

// nodePortsMoved makes the UDP flows of all node ports due if node ports now answer at other
// addresses.
func (in *inspection) nodePortsMoved() {
	r := in.change.Rules
	if r == nil || len(r.Old.NodePorts) == 0 {
		return
	}
	left := r.Old.LocalhostNodePorts && !r.New.LocalhostNodePorts &&
		len(within([]netip.Addr{localhost}, r.Old.NodePorts)) > 0
	if !left && slices.Equal(r.Old.NodePorts, r.New.NodePorts) {
		return
	}
	in.formerLocalhost = in.formerLocalhost || left
	in.former = append(in.former, r.Old.NodePorts...)
	for f := range in.change.New.Frontends() {
		if f.Key.NodePort() && f.Key.Protocol == servicemodel.UDP {
			in.find(f.Key, f.Service).all = true
		}
	}
}

// expire makes all flows due whose time has come. It returns the time until the next deadline, or 0
// without a deadline.
func (k *Keeper) expire(now time.Time) (next time.Duration) {
	// come reports whether a time has come. If not, it updates next.
	come := func(t time.Time) bool {
		wait := t.Sub(now)
		if wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
		return wait <= 0
	}

	var drained []backends.Drained
	for key, list := range k.departed {
		for e, d := range list {
			if !d.at.IsZero() && come(d.at) {
				delete(list, e)
				drained = append(drained, backends.Drained{Service: d.service,
					Frontend: key, Endpoint: e, Deadline: true})
				k.delete(key, d.service, e)
			}
		}

		if len(list) == 0 {
			delete(k.departed, key)
		}
	}

	slices.SortFunc(drained, func(a, b backends.Drained) int {
		return cmp.Or(a.Frontend.Compare(b.Frontend), a.Endpoint.Compare(b.Endpoint))
	})
	k.drained = append(k.drained, drained...)
	for key, times := range k.echoes {
		for len(times) > 0 && come(times[0]) {
			k.find(key, servicemodel.PortName{}).echo = true
			times = times[1:]
		}

		k.echoes[key] = times
		if len(times) == 0 {
			delete(k.echoes, key)
		}
	}

	return next
}
