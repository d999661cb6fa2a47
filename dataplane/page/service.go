package page

import (
	"cmp"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

type serviceData struct {
	Name      servicemodel.Name       `json:"name"`
	Condition condition               `json:"condition"`
	Service   *servicemodel.Service   `json:"service,omitempty"` // nil if it is not wanted
	Refusal   *dataplane.Refusal      `json:"refusal,omitempty"`
	Conflicts []servicemodel.Conflict `json:"conflicts,omitempty"`
	Frontends []frontendRow           `json:"frontends"`
	Ports     []portPart              `json:"ports"`
	// Connections is set if the request asked for it.
	Connections []*connections `json:"connections,omitempty"`
	// Counters are set if the request asked for them, each frontend before its endpoints.
	// OnlyConnections says that they count neither packets nor bytes.
	Counters        []counters.Row `json:"counters,omitempty"`
	OnlyConnections bool           `json:"onlyConnections,omitempty"`

	CanCount bool `json:"-"` // connections can be counted
	Counted  bool `json:"-"` // connections were counted
	CanAsk   bool `json:"-"` // endpoints can be asked
	CanRead  bool `json:"-"` // counters can be read
}

// Bad reports whether the service needs attention.
func (d *serviceData) Bad() bool { return d.Condition.bad() }

// frontendRow is a frontend in the kernel, with the reason why it rejects or drops.
type frontendRow struct {
	Frontend *servicemodel.Frontend `json:"frontend"`
	Cause    string                 `json:"cause,omitempty"`
}

// portPart holds the endpoints of a service port in one family.
type portPart struct {
	Port       servicemodel.PortName   `json:"port"`
	Family     servicemodel.Family     `json:"family"`
	Scheduler  servicemodel.Scheduler  `json:"scheduler,omitzero"`
	Forwarding servicemodel.Forwarding `json:"forwarding,omitzero"`
	// HasLocal says that some frontends send clients only to endpoints on this node.
	HasLocal  bool          `json:"hasLocal"`
	Endpoints []endpointRow `json:"endpoints"`
}

// endpointRow is an endpoint of a service port. Cluster and Local are its shares of new
// connections, from 0 to 1: Cluster at the frontends that balance over all endpoints, Local at the
// frontends that balance over the endpoints on this node.
type endpointRow struct {
	Endpoint  netip.AddrPort `json:"endpoint"`
	Node      string         `json:"node,omitempty"`
	Zone      string         `json:"zone,omitempty"`
	Condition string         `json:"condition"`
	Weight    uint16         `json:"weight,omitzero"`
	Cluster   float64        `json:"cluster"`
	Local     float64        `json:"local"`
	// Excluded is the reason why the endpoint has no share of Cluster, and ExcludedLocal the reason
	// for Local.
	Excluded      string `json:"excluded,omitempty"`
	ExcludedLocal string `json:"excludedLocal,omitempty"`
}

func (p *Page) service(r *http.Request, s *dataplane.Status) (any, error) {
	q := r.URL.Query()
	l, e, err := p.named(q.Get("name"), s)
	if err != nil {
		return nil, err
	}
	name := e.name
	d := &serviceData{Name: name, Condition: e.condition, Service: s.State.Service(name),
		Refusal: l.refusalOf(name), Frontends: []frontendRow{}, Ports: []portPart{},
		CanCount: p.cfg.Conntrack != nil, CanAsk: p.cfg.Dial != nil,
		CanRead: p.cfg.Counters != nil}
	for _, c := range l.Conflicts {
		if c.Winner.Name == name || c.Loser.Name == name {
			d.Conflicts = append(d.Conflicts, c)
		}
	}

	for _, f := range e.frontends {
		d.Frontends = append(d.Frontends, frontendRow{f, l.Held.Cause(f).String()})
	}
	d.addPorts(l, e)
	d.addSilent(p.cfg.Silent(), time.Now())
	if q.Get("connections") != "" {
		if d.Connections, err = p.connectionsOf(r.Context(), l.Held, name); err != nil {
			return d, err
		}
		d.Counted = true
	}

	if q.Get("counters") != "" {
		return d, p.addCounters(r.Context(), d, l, e)
	}
	return d, nil
}

// addPorts adds the ports that are desired or in the kernel, in the families that have endpoints or
// frontends.
func (d *serviceData) addPorts(l *listing, e *entry) {
	type part struct {
		port   servicemodel.PortName
		family servicemodel.Family
	}
	var parts []part
	for _, f := range e.frontends {
		parts = append(parts, part{f.Service, f.Key.Family()})
	}
	if d.Service != nil {
		for _, p := range d.Service.Ports {
			for _, ep := range l.State.Endpoints(d.Name) {
				parts = append(parts, part{servicemodel.PortName{Name: d.Name, Port: p.Name,
					Protocol: p.Protocol}, servicemodel.FamilyOf(ep.Addr)})
			}
		}
	}

	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(a.port.Compare(b.port), cmp.Compare(a.family, b.family))
	})
	for _, p := range slices.Compact(parts) {
		d.Ports = append(d.Ports, l.portPart(p.port, p.family))
	}
}

// addSilent adds the reason to endpoints that were ejected because they do not answer clients.
func (d *serviceData) addSilent(out []silence.Change, now time.Time) {
	for _, c := range out {
		for _, port := range d.Ports {
			for i := range port.Endpoints {
				row := &port.Endpoints[i]
				if c.Out && port.Port == c.Service && row.Endpoint == c.Endpoint {
					row.Excluded, row.ExcludedLocal = c.Status(now), c.Status(now)
				}
			}
		}
	}
}

// portPart returns the endpoints of a port in a family, with their shares.
func (l *listing) portPart(port servicemodel.PortName, f servicemodel.Family) portPart {
	p := portPart{Port: port, Family: f, Endpoints: []endpointRow{}}
	rows := map[netip.AddrPort]int{}
	for _, sel := range servicemodel.Select(l.State, port, f) {
		if sel.Foreign {
			continue
		}
		rows[sel.Target] = len(p.Endpoints)
		row := endpointRow{Endpoint: sel.Target, Node: sel.Endpoint.Node, Zone: sel.Endpoint.Zone,
			Condition: sel.Endpoint.Condition.String(), Excluded: sel.Cluster,
			ExcludedLocal: sel.Local}
		p.Endpoints = append(p.Endpoints, row)
	}

	for _, local := range []bool{false, true} {
		if pool := l.Held.Pool(servicemodel.PoolID{Service: port, Family: f,
			Local: local}); pool != nil {
			p.addPool(pool, rows)
		}
	}

	return p
}

// addPool adds the shares of a pool's slots.
func (p *portPart) addPool(pool *servicemodel.Pool, rows map[netip.AddrPort]int) {
	p.Scheduler, p.Forwarding = pool.Scheduler, pool.Forwarding
	local := pool.ID.Local
	p.HasLocal = p.HasLocal || local
	shares := pool.Shares()
	if shares == nil { // the scheduler decides
		shares = make([]float64, len(pool.Slots))
	}
	for slot, s := range pool.Slots {
		i, found := rows[s.Endpoint]
		if !found {
			i = len(p.Endpoints)
			rows[s.Endpoint] = i
			p.Endpoints = append(p.Endpoints, endpointRow{Endpoint: s.Endpoint,
				Condition: "not wanted any more"})
		}

		row, share := &p.Endpoints[i], shares[slot]
		row.Weight = cmp.Or(row.Weight, s.Weight)
		if local {
			row.Local = share
		} else {
			row.Cluster = share
		}
	}
}

// Affinity returns the session affinity as text, or "" without affinity.
func (r frontendRow) Affinity() string {
	return r.Frontend.AffinityText()
}

// Ranges returns the ranges that may connect as text. It is empty if there is no restriction.
func (r frontendRow) Ranges() string {
	var l []string
	for _, s := range r.Frontend.Sources {
		l = append(l, s.String())
	}
	return strings.Join(l, ", ")
}
