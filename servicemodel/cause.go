package servicemodel

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/kernlb/kernlb/internal/spell"
)

// Cause is why packets are rejected or dropped. Its String names it in words.
type Cause struct {
	Kind CauseKind `json:"kind"`

	// At is the frontend, or the destination that no frontend has.
	At FrontendKey `json:"at,omitzero"`
	// Service is the service port of the frontend. Of CauseOtherPort, only its Name is set: the
	// service that has the address.
	Service PortName `json:"service,omitzero"`
	// Policy is the traffic policy that is Local ("internalTrafficPolicy" or
	// "externalTrafficPolicy"), and Node the name of the node, of CauseNotLocal. The node is empty
	// if it is not known or has no name.
	Policy string `json:"policy,omitzero"`
	Node   string `json:"node,omitzero"`
	// Source is the address that may not connect, of CauseSource.
	Source netip.Addr `json:"source,omitzero"`

	// Endpoints is how many endpoints the service has that the cause is about: all of them; of
	// CauseNotReady, those with the right family and port; of CauseNotLocal, those that could be
	// used on other nodes. Of CauseUnknown it is 0.
	Endpoints int `json:"endpoints,omitzero"`
	// Quiesced is how many of them are quiesced, of CauseNotReady.
	Quiesced int `json:"quiesced,omitzero"`
	// Unplaced is how many of them name no node, of CauseNotLocal.
	Unplaced int `json:"unplaced,omitzero"`
	// Others is what there is instead, sorted: of CauseNoEndpoints, services of similar names that
	// have endpoints and do not exist; of CauseNoPort, the ports that the endpoints have, such as
	// "http/tcp"; of CauseOtherPort, the ports that the address has, such as "80/tcp"; of
	// CauseSource, the ranges that may connect.
	Others []string `json:"others,omitempty"`
}

// CauseKind tells causes apart.
type CauseKind uint8

// The kinds of causes. The first ones are of frontends that lack endpoints, in the order in which
// they are looked for.
const (
	NoCause          CauseKind = iota // packets are balanced, or left alone
	CauseNoEndpoints                  // the service has no endpoints
	CauseNoFamily                     // none of the frontend's family
	CauseNoPort                       // none with a port of its name and protocol
	CauseNotReady                     // none ready, or serving while it terminates; or quiesced
	CauseNotLocal                     // the traffic policy is Local, and none is on this node
	CauseUnknown                      // no endpoint; the table does not say why

	CauseSource    // the source is in none of the ranges that may connect
	CauseOtherPort // the destination is a cluster IP that has other ports
	CauseNoService // the destination is in the range of cluster IPs, and no service has it
)

// String returns the name of the kind, such as "not-ready".
func (k CauseKind) String() string {
	names := [...]string{"none", "no-endpoints", "no-family", "no-port", "not-ready", "not-local",
		"unknown", "source", "other-port", "no-service"}
	if int(k) < len(names) {
		return names[k]
	}
	return "cause " + uitoa(uint16(k))
}

// String returns the cause in words, such as "2 endpoints, none ready". It is empty for NoCause.
func (c Cause) String() string {
	switch c.Kind {
	case NoCause:
		return ""
	case CauseNoEndpoints:
		s := "the service has no endpoints"
		if len(c.Others) > 0 {
			s += "; endpoints exist under " + strings.Join(c.Others, ", ")
		}
		return s
	case CauseNoFamily:
		return fmt.Sprintf("no endpoint of family %v; %s of the other", c.At.Family(),
			isOrAre(c.Endpoints))
	case CauseNoPort:
		return fmt.Sprintf("%s, none has a port %s: they have %s", endpointsText(c.Endpoints),
			named(c.Service), orNone(strings.Join(c.Others, ", ")))
	case CauseNotReady:
		s := endpointsText(c.Endpoints) + ", none ready"
		if c.Quiesced > 0 {
			s += fmt.Sprintf(" and not quiesced (%d of them quiesced)", c.Quiesced)
		}
		return s
	case CauseNotLocal:
		return c.notLocal()
	case CauseSource:
		return fmt.Sprintf("%v may not connect, only %s", c.Source, orNone(strings.Join(c.Others,
			", ")))
	case CauseOtherPort:
		return fmt.Sprintf("%v is %v, which has %s, not %s", c.At.Addr, c.Service.Name,
			portsText(c.Others), numbered(c.At))
	case CauseNoService:
		return fmt.Sprintf("no service has the address %v of the service CIDR", c.At.Addr)
	}
	return "no endpoint can be used"
}

func (c Cause) notLocal() string {
	s := c.Policy + " is Local and no ready endpoint is on "
	switch c.Node {
	case "":
		s += "this node"
	default:
		s += "node " + c.Node
	}
	if placed := c.Endpoints - c.Unplaced; placed > 0 {
		s += "; " + isOrAre(placed) + " elsewhere"
	}
	switch {
	case c.Unplaced == 1:
		s += "; 1 endpoint names no node"
	case c.Unplaced > 1:
		s += "; " + endpointsText(c.Unplaced) + " name no node"
	}
	return s
}

// endpointsText is "1 endpoint" or "3 endpoints".
func endpointsText(n int) string {
	if n == 1 {
		return "1 endpoint"
	}
	return fmt.Sprintf("%d endpoints", n)
}

// isOrAre is "1 endpoint is" or "3 endpoints are".
func isOrAre(n int) string {
	if n == 1 {
		return "1 endpoint is"
	}
	return endpointsText(n) + " are"
}

// named is "named http/tcp", or "without a name for tcp".
func named(n PortName) string {
	if n.Port == "" {
		return "without a name for " + n.Protocol.String()
	}
	return "named " + n.Port + "/" + n.Protocol.String()
}

// numbered is "8080/tcp", or the protocol alone where it has no ports.
func numbered(k FrontendKey) string {
	if !k.Protocol.Valid() {
		return k.Protocol.String()
	}
	return uitoa(k.Port) + "/" + k.Protocol.String()
}

// portsText is "port 80/tcp", "ports 80/tcp and 443/tcp", or "no ports".
func portsText(ports []string) string {
	switch n := len(ports); n {
	case 0:
		return "no ports"
	case 1:
		return "port " + ports[0]
	default:
		return "ports " + strings.Join(ports[:n-1], ", ") + " and " + ports[n-1]
	}
}

// Cause says why a frontend of t rejects or drops packets, from anywhere or from outside, by the
// state that t was resolved from. It is NoCause if f balances all of them. f may also be what a
// kernel holds where t is wanted; it is CauseUnknown if the state gives no reason for it. A table
// that was not resolved, but read from a kernel, knows no more than its verdicts and pools tell.
//
// The cost is that of the service, and once for each table that of all services, if one has no
// endpoints.
func (t *Table) Cause(f *Frontend) Cause {
	if t.remembers() {
		return t.memory.explain(f)
	}
	c := f.cause()
	if c.Kind == CauseNotLocal {
		if everywhere, _ := t.PoolsOf(f); everywhere != nil {
			c.Endpoints = len(everywhere.Slots)
		}
	}
	return c
}

// explain is [Table.Cause] for the table of the memory.
func (m *memory) explain(f *Frontend) Cause {
	c := f.cause()
	if c.Kind == NoCause {
		return c
	}
	n := tally(Select(m.state, f.Service, f.Key.Family()))
	unknown := Cause{Kind: CauseUnknown, At: f.Key, Service: f.Service}
	if m.state.port(f.Service) == nil || (c.Kind == CauseNotLocal) != (n.usable > 0) ||
		c.Kind == CauseNotLocal && n.local > 0 {
		return unknown
	}
	switch {
	case n.usable > 0:
		c.Node, c.Endpoints, c.Unplaced = m.state.viewpoint().Name, n.usable, n.unplaced
	case n.all == 0:
		c.Kind, c.Others = CauseNoEndpoints, m.misnamed(f.Service.Name)
	case n.family == 0:
		c.Kind, c.Endpoints = CauseNoFamily, n.all
	case n.port == 0:
		c.Kind, c.Endpoints = CauseNoPort, n.family
		c.Others = m.portsOf(f.Service.Name, f.Key.Family())
	default:
		c.Kind, c.Endpoints, c.Quiesced = CauseNotReady, n.port, n.quiesced
	}
	return c
}

// tallied counts the endpoints of a selection that come so far.
type tallied struct{ all, family, port, quiesced, usable, unplaced, local int }

func tally(sel []Selection) (n tallied) {
	n.all = len(sel)
	for i := range sel {
		if sel[i].Cluster == OtherFamily {
			continue
		}
		n.family++
		if sel[i].Cluster == OtherPort {
			continue
		}
		n.port++
		switch sel[i].Cluster {
		case TakesNoNew:
			n.quiesced++
			continue
		case Repeated, Unready:
			continue
		}
		n.usable++
		if sel[i].Endpoint.Node == "" {
			n.unplaced++
		}
		if sel[i].Local == Included {
			n.local++
		}
	}
	return n
}

// cause is what f alone says of why it rejects or drops.
func (f *Frontend) cause() Cause {
	c := Cause{At: f.Key, Service: f.Service}
	switch {
	case f.Internal == Reject || f.External == Reject:
		c.Kind = CauseUnknown
	case f.Internal == Drop || f.External == Drop:
		c.Kind, c.Policy = CauseNotLocal, "externalTrafficPolicy"
		if f.Kind == ClusterIP {
			c.Policy = "internalTrafficPolicy"
		}
	}
	return c
}

// portsOf returns the ports of a service's endpoints of a family, sorted.
func (m *memory) portsOf(n Name, f Family) []string {
	var all []string
	for _, e := range m.state.endpointsOf(n) {
		if FamilyOf(e.Addr) != f {
			continue
		}
		for _, p := range e.Ports {
			all = append(all, cmp.Or(p.Name, `""`)+"/"+p.Protocol.String())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// homeless are the names that have endpoints and are no services.
type homeless struct {
	once  sync.Once
	names []Name
}

// misnamed returns the homeless that may stand for n: names of the same namespace that are similar,
// and the same name in other namespaces.
func (m *memory) misnamed(n Name) []string {
	m.homeless.once.Do(func() {
		for o := range m.state.endpoints.All() {
			if m.state.serviceOf(o) == nil {
				m.homeless.names = append(m.homeless.names, o)
			}
		}
	})
	var near, all []string
	for _, o := range m.homeless.names {
		switch {
		case o.Namespace == n.Namespace:
			near = append(near, o.Name)
		case o.Name == n.Name:
			all = append(all, o.String())
		}
	}
	if meant, ok := spell.Nearest(n.Name, slices.Values(near)); ok {
		all = append(all, Name{n.Namespace, meant}.String())
	}
	slices.Sort(all)
	return all
}
