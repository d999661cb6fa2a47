package flows

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/shared"
	"github.com/kernlb/kernlb/servicemodel"
)

// departures are the endpoints that a frontend sends nothing new to, and that may keep the flows
// they have, for some time or as long as they serve.
type departures map[netip.AddrPort]departure

type departure struct {
	service servicemodel.PortName
	// at is when the flows are to be deleted; zero: no such time was set.
	at time.Time
	// lingers: they are to be deleted when the endpoint does not serve any more.
	lingers bool
}

// lingering remembers, by service port, the endpoints that terminate or are quiesced, but still
// serve.
type lingering map[servicemodel.PortName]map[netip.AddrPort]bool

// of returns the lingering endpoints of a service port in a state.
func (l lingering) of(s servicemodel.State, n servicemodel.PortName) map[netip.AddrPort]bool {
	if known, ok := l[n]; ok {
		return known
	}
	var found map[netip.AddrPort]bool
	eps := s.Endpoints(n.Name)
	for i := range eps {
		e := &eps[i]
		quiesced := e.Quiesced && (e.Ready || e.Serving)
		if !quiesced && !(e.Serving && e.Terminating) {
			continue
		}
		for _, p := range e.Ports {
			if p.Name != n.Port || p.Protocol != n.Protocol {
				continue
			}
			if found == nil {
				found = map[netip.AddrPort]bool{}
			}
			found[netip.AddrPortFrom(e.Addr, p.Port)] = true
		}
	}
	l[n] = found
	return found
}

// mover works one change into a keeper.
type mover struct {
	*Keeper
	change    *servicemodel.ChangeSet
	now       time.Time
	compared  map[poolsKey]comparison
	lingering lingering
}

// poolsKey are the pools of a frontend, before and after.
type poolsKey struct{ old, new [2]*servicemodel.Pool }

// comparison says what happened to the endpoints of a frontend.
type comparison struct {
	left   []netip.AddrPort // they were among its endpoints, and are not
	first  bool             // it had none, and has some
	joined bool             // some are among them that were not
}

// moveAll works in every frontend that the change touches.
func (m *mover) moveAll() {
	for _, f := range m.change.Frontends {
		if f.New != nil {
			m.move(f.New.Key)
		} else {
			m.move(f.Old.Key)
		}
	}
	for i := range m.change.Pools {
		p := &m.change.Pools[i]
		if p.Old == nil || p.New == nil {
			continue // its frontends begin or end to use it: they changed
		}
		for _, f := range shared.Of(m.change.New).FrontendsOf(p.New.ID.Service) {
			if f.Key.Family() == p.New.ID.Family && m.concerned(f.Key, p) {
				m.move(f.Key)
			}
		}
	}
}

// concerned reports whether the change of a pool matters to a frontend: whether an endpoint left
// it, or one came back.
func (m *mover) concerned(key servicemodel.FrontendKey, p *servicemodel.PoolChange) bool {
	if len(m.departed[key]) > 0 {
		return true
	}
	for s := range p.Slots() {
		if s.Old.Endpoint.IsValid() && s.Old.Endpoint != s.New.Endpoint {
			return true
		}
	}
	return false
}

// move works in one frontend. It may be called more than once for it.
func (m *mover) move(key servicemodel.FrontendKey) {
	old, new := shared.Of(m.change.Old).Frontend(key), shared.Of(m.change.New).Frontend(key)
	c := m.compare(old, new)
	if c.joined && len(m.departed[key]) > 0 {
		for _, e := range endpointsOf(pools(m.change.New, new)) {
			delete(m.departed[key], e)
		}
	}
	if new == nil {
		m.evict(key)
	}
	if key.Protocol == servicemodel.UDP && c.first {
		s := m.find(key)
		s.all = true
		s.fresh = true
	}
	for _, e := range c.left {
		m.leave(key, old.Service, e, new != nil && m.lingering.of(m.state, old.Service)[e])
	}
}

// compare returns what happened to the endpoints of a frontend, which is the same for all with the
// same pools.
func (m *mover) compare(old, new *servicemodel.Frontend) comparison {
	key := poolsKey{pools(m.change.Old, old), pools(m.change.New, new)}
	if c, ok := m.compared[key]; ok {
		return c
	}
	was, is := endpointsOf(key.old), endpointsOf(key.new)
	c := comparison{first: len(was) == 0 && len(is) > 0}
	in := make(map[netip.AddrPort]bool, len(is))
	for _, e := range is {
		in[e] = true
	}
	stayed := 0
	for _, e := range was {
		if in[e] {
			stayed++
		} else {
			c.left = append(c.left, e)
		}
	}
	c.joined = len(is) > stayed
	m.compared[key] = c
	return c
}

// leave decides about the flows of an endpoint that a frontend sends nothing new to.
func (m *mover) leave(key servicemodel.FrontendKey, n servicemodel.PortName, e netip.AddrPort,
	lingers bool) {
	udp := key.Protocol == servicemodel.UDP
	if udp && !lingers {
		m.find(key).all = true
		return
	}
	d := departure{service: n, lingers: udp}
	switch p := m.policy(n.Name); p.Mode {
	case servicemodel.CutConnections:
		m.delete(key, e)
		return
	case servicemodel.DrainConnections:
		d.at = m.now.Add(p.Drain)
	default:
		if !udp {
			return // it goes on, and nobody needs to remember it
		}
	}
	m.depart(key, e, d)
}

// depart notes a departure, unless it is known.
func (k *Keeper) depart(key servicemodel.FrontendKey, e netip.AddrPort, d departure) {
	if k.departed[key] == nil {
		k.departed[key] = departures{}
	}
	if _, known := k.departed[key][e]; !known {
		k.departed[key][e] = d
	}
}

// delete makes the flows of a departed endpoint due. All UDP flows that are not where they belong
// are; of the connections, just its own: others may have been left alone.
func (k *Keeper) delete(key servicemodel.FrontendKey, e netip.AddrPort) {
	s := k.find(key)
	if key.Protocol == servicemodel.UDP {
		s.all = true
		return
	}
	s.gone = append(s.gone, e)
}

// evict ends the stay of endpoints that linger: their frontend is gone. Connections are drained to
// the end.
func (m *mover) evict(key servicemodel.FrontendKey) {
	for e, d := range m.departed[key] {
		if d.lingers {
			delete(m.departed[key], e)
			m.delete(key, e)
		}
	}
}

// review ends the stay of endpoints that do not serve any more.
func (m *mover) review() {
	for key, list := range m.departed {
		for e, d := range list {
			if d.lingers && !m.lingering.of(m.state, d.service)[e] {
				delete(list, e)
				m.delete(key, e)
			}
		}
	}
}

// checkAll makes a new keeper look at everything: a program that was stopped between a commit and
// the cleaning after it cannot know what it missed. What it looks for is stale beyond doubt: flows
// of our frontends that go to endpoints which these do not have.
func (m *mover) checkAll() {
	for f := range shared.Of(m.change.New).Frontends() {
		switch mode := m.policy(f.Service.Name).Mode; {
		case f.Key.Protocol == servicemodel.UDP:
			m.find(f.Key).all = true
			m.keepLingering(f)
		case mode == servicemodel.CutConnections:
			m.find(f.Key).all = true
		case mode == servicemodel.DrainConnections:
			if !slices.Contains(m.unknown, f.Key.Protocol) {
				m.unknown = append(m.unknown, f.Key.Protocol)
			}
		}
	}
}

// keepLingering lets those endpoints of a frontend keep their flows that had begun to terminate
// before the keeper began.
func (m *mover) keepLingering(f *servicemodel.Frontend) {
	all := m.lingering.of(m.state, f.Service)
	if len(all) == 0 {
		return
	}
	used := endpointsOf(pools(m.change.New, f))
	for e := range all {
		if servicemodel.FamilyOf(e.Addr()) == f.Key.Family() && !slices.Contains(used, e) {
			m.leave(f.Key, f.Service, e, true)
		}
	}
}

// findDeparted looks once for connections to endpoints that departed before the keeper began. They
// are drained from now on.
func (k *Keeper) findDeparted(ctx context.Context) error {
	if len(k.unknown) == 0 {
		return nil
	}
	node, err := k.table.NodeAddrs(k.services.Rules().NodePorts)
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
			// Where a connection was cut, flows with fixed timeouts answer what its ends still
			// send.
			if own == nil || !f.Translated() || f.Status&conntrack.StatusFixedTimeout != 0 ||
				index.Serves(own, &f) {
				continue
			}
			if p := k.policy(own.Service.Name); p.Mode == servicemodel.DrainConnections {
				k.depart(own.Key, f.Reply.Src, departure{service: own.Service,
					at: time.Now().Add(p.Drain)})
			}
		}
	}
	k.unknown = nil
	return nil
}

// nodePortsMoved makes the UDP flows of all node ports due if they answer at other addresses now.
func (m *mover) nodePortsMoved() {
	r := m.change.Rules
	if r == nil || len(r.Old.NodePorts) == 0 || slices.Equal(r.Old.NodePorts, r.New.NodePorts) {
		return
	}
	m.former = append(m.former, r.Old.NodePorts...)
	for f := range shared.Of(m.change.New).Frontends() {
		if f.Key.NodePort() && f.Key.Protocol == servicemodel.UDP {
			m.find(f.Key).all = true
		}
	}
}

// expire makes due whose time has come, and returns how long until the next; 0 if there is none.
func (k *Keeper) expire(now time.Time) (next time.Duration) {
	// come reports whether a time has come, and notes when it will.
	come := func(t time.Time) bool {
		wait := t.Sub(now)
		if wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
		return wait <= 0
	}
	for key, list := range k.departed {
		for e, d := range list {
			if !d.at.IsZero() && come(d.at) {
				delete(list, e)
				k.delete(key, e)
			}
		}
		if len(list) == 0 {
			delete(k.departed, key)
		}
	}
	for key, times := range k.echoes {
		for len(times) > 0 && come(times[0]) {
			k.find(key).echo = true
			times = times[1:]
		}
		if k.echoes[key] = times; len(times) == 0 {
			delete(k.echoes, key)
		}
	}
	return next
}
