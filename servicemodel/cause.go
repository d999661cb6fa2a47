package servicemodel

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/kernlb/kernlb/internal/suggest"
)

// Cause says why packets are rejected or dropped. String describes it in words.
type Cause struct {
	// Kind is empty if packets are balanced, or not affected by services. If a frontend lacks
	// endpoints, Kind is the first of these that applies:
	//
	//	no-endpoints  the service has no endpoints
	//	no-family     none of the frontend's family
	//	no-port       none with a port of its name and protocol
	//	not-ready     none ready, nor serving while it terminates
	//	not-local     the traffic policy is Local, and none is on this node
	//	unknown       no endpoint; the table does not have the reason
	//
	// For all other packets, it is one of these:
	//
	//	source        the source is in none of the ranges that may connect
	//	other-port    the destination is a cluster IP with other ports
	//	no-service    no service has this address of the service CIDR
	Kind string `json:"kind"`

	// At is the key of the frontend, or the packet's destination if there is no frontend.
	At FrontendKey `json:"at,omitzero"`
	// Service is the service port of the frontend. For other-port, only its Name is set: the
	// service at that address.
	Service PortName `json:"service,omitzero"`
	// Policy is the policy that is Local ("internalTrafficPolicy" or "externalTrafficPolicy"), and
	// Node is the name of the node. Both are set only for not-local. Node is also empty if the
	// node's name is unknown.
	Policy string `json:"policy,omitzero"`
	Node   string `json:"node,omitzero"`
	// Source is the source address that may not connect. It is set only for the kind source.
	Source netip.Addr `json:"source,omitzero"`

	// Endpoints is the number of endpoints of the service that the cause is about. It counts the
	// endpoints that meet all earlier conditions: for no-family all endpoints, for no-port those of
	// the right family, for not-ready those that also have the port, and for not-local those that
	// other nodes can use. It is 0 for unknown.
	Endpoints int `json:"endpoints,omitzero"`
	// Quiesced is how many of these Endpoints are quiesced. It is set only for the kind not-ready.
	Quiesced int `json:"quiesced,omitzero"`
	// Unplaced is the number of these Endpoints that name no node. It is set only for the kind
	// not-local.
	Unplaced int `json:"unplaced,omitzero"`
	// Others is a sorted list of alternatives. no-endpoints: similar service names that have
	// endpoints but no service. no-port: the ports of the endpoints, such as "http/tcp".
	// other-port: the ports of the address, such as "80/tcp". source: the ranges that may connect.
	Others []string `json:"others,omitempty"`
}

// The kinds of causes. [Table.Cause] checks the kinds for frontends without endpoints in this
// order.
const (
	noCause          = ""
	causeNoEndpoints = "no-endpoints"
	causeNoFamily    = "no-family"
	causeNoPort      = "no-port"
	causeNotReady    = "not-ready"
	causeNotLocal    = "not-local"
	causeUnknown     = "unknown"
	causeSource      = "source"
	causeOtherPort   = "other-port"
	causeNoService   = "no-service"
)

// String returns the cause in words, such as "2 endpoints, none ready". It is empty if the cause
// has no kind.
func (c Cause) String() string {
	switch c.Kind {
	case noCause:
		return ""
	case causeNoEndpoints:
		s := "the service has no endpoints"
		if len(c.Others) > 0 {
			s += "; endpoints exist under " + strings.Join(c.Others, ", ")
		}
		return s
	case causeNoFamily:
		return fmt.Sprintf("no endpoint of family %v; %s of the other", c.At.Family(),
			isOrAre(c.Endpoints))
	case causeNoPort:
		return fmt.Sprintf("%s, none has a port %s: they have %s", endpointsText(c.Endpoints),
			named(c.Service), orNone(strings.Join(c.Others, ", ")))
	case causeNotReady:
		s := endpointsText(c.Endpoints) + ", none ready"
		if c.Quiesced > 0 {
			s += fmt.Sprintf(" and not quiesced (%d of them quiesced)", c.Quiesced)
		}
		return s
	case causeNotLocal:
		return c.notLocal()
	case causeSource:
		return fmt.Sprintf("%v may not connect, only %s", c.Source, orNone(strings.Join(c.Others,
			", ")))
	case causeOtherPort:
		return fmt.Sprintf("%v is %v, which has %s, not %s", c.At.Addr, c.Service.Name,
			portsText(c.Others), numbered(c.At))
	case causeNoService:
		return fmt.Sprintf("no service has the address %v of the service CIDR", c.At.Addr)
	}

	return "no endpoint can be used"
}

func (c Cause) notLocal() string {
	s := c.Policy + " is Local and no ready endpoint is on this node"
	if c.Node != "" {
		s = c.Policy + " is Local and no ready endpoint is on node " + c.Node
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

func endpointsText(n int) string {
	if n == 1 {
		return "1 endpoint"
	}
	return fmt.Sprintf("%d endpoints", n)
}

func isOrAre(n int) string {
	if n == 1 {
		return "1 endpoint is"
	}
	return endpointsText(n) + " are"
}

// named returns "named http/tcp", or "without a name for tcp".
func named(n PortName) string {
	if n.Port == "" {
		return "without a name for " + n.Protocol.String()
	}
	return "named " + n.Port + "/" + n.Protocol.String()
}

// numbered returns "8080/tcp" or "10000-20000/udp", or only the protocol if it has no ports.
func numbered(k FrontendKey) string {
	if !k.Protocol.Valid() {
		return k.Protocol.String()
	}
	return k.ports() + "/" + k.Protocol.String()
}

// portsText returns "port 80/tcp", "ports 80/tcp and 443/tcp", or "no ports".
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

// Cause returns the reason why a frontend of t rejects or drops packets, derived from the state
// from which t was resolved. It covers packets from inside and outside the cluster. If f balances
// all packets, the cause has no kind. f may also come from the kernel's table, with t as the
// desired table. If the state gives no reason, the kind is unknown. For a table that was read from
// a kernel, only verdicts and pools are known.
//
// The cost depends on the size of the service. For a service without endpoints, the first call for
// a table also walks all services.
func (t *Table) Cause(f *Frontend) Cause {
	if t.remembers() {
		return t.memory.explain(f)
	}
	c := f.cause()
	if c.Kind == causeNotLocal {
		if everywhere, _ := t.PoolsOf(f); everywhere != nil {
			c.Endpoints = len(everywhere.Slots)
		}
	}

	return c
}

// explain is [Table.Cause] for a table that remembers its state.
func (m *memory) explain(f *Frontend) Cause {
	c := f.cause()
	if c.Kind == noCause {
		return c
	}
	n := tally(Select(m.state, f.Service, f.Key.Family()))
	unknown := Cause{Kind: causeUnknown, At: f.Key, Service: f.Service}
	if m.state.port(f.Service) == nil || (c.Kind == causeNotLocal) != (n.usable > 0) ||
		c.Kind == causeNotLocal && n.local > 0 {
		return unknown
	}

	switch {
	case n.usable > 0:
		c.Node, c.Endpoints, c.Unplaced = m.state.viewpoint().Name, n.usable, n.unplaced
	case n.all == 0:
		c.Kind, c.Others = causeNoEndpoints, m.misnamed(f.Service.Name)
	case n.family == 0:
		c.Kind, c.Endpoints = causeNoFamily, n.all
	case n.port == 0:
		c.Kind, c.Endpoints = causeNoPort, n.family
		c.Others = portsOf(filter(m.state.entries.At(f.Service.Name).endpoints,
			func(e endpoint) bool { return FamilyOf(e.Addr) == f.Key.Family() }))
	default:
		c.Kind, c.Endpoints, c.Quiesced = causeNotReady, n.port, n.quiesced
	}

	return c
}

// tallied counts endpoints of a selection. Each number counts the endpoints that meet its condition
// and all conditions before it.
type tallied struct{ all, family, port, quiesced, usable, unplaced, local int }

func tally(sel []Selection) (n tallied) {
	n.all = len(sel)
	for i := range sel {
		switch sel[i].Cluster {
		case otherFamily.String():
			continue
		case otherPort.String():
			n.family++
			continue
		}

		n.family, n.port = n.family+1, n.port+1
		switch sel[i].Cluster {
		case takesNoNew.String():
			n.quiesced++
			continue
		case repeated.String(), unready.String():
			continue
		}

		n.usable++
		if sel[i].Endpoint.Node == "" {
			n.unplaced++
		}
		if sel[i].Local == "" {
			n.local++
		}
	}

	return n
}

// cause derives the reason why f rejects or drops packets from f alone.
func (f *Frontend) cause() Cause {
	if f == nil {
		return Cause{}
	}
	c := Cause{At: f.Key, Service: f.Service}
	switch {
	case f.Internal == Reject || f.External == Reject:
		c.Kind = causeUnknown
	case f.Internal == Drop || f.External == Drop:
		c.Kind, c.Policy = causeNotLocal, f.policyName()
	}

	return c
}

// policyName returns the name of the traffic policy that applies to f.
func (f *Frontend) policyName() string {
	if f.Kind == ClusterIP {
		return "internalTrafficPolicy"
	}
	return "externalTrafficPolicy"
}

// portsOf returns the ports of endpoints, sorted.
func portsOf(eps []endpoint) []string {
	ports := map[portKey]bool{}
	for i := range eps {
		for _, p := range eps[i].Ports {
			ports[portKey{p.Name, p.Protocol}] = true
		}
	}

	var all []string
	for p := range ports {
		all = append(all, cmp.Or(p.name, `""`)+"/"+p.protocol.String())
	}
	slices.Sort(all)
	return all
}

// homeless holds the names that have endpoints but no service.
type homeless struct {
	once  sync.Once
	names []Name
}

// misnamed returns the homeless names that may be misspellings of n: similar names in the same
// namespace, and the same name in other namespaces.
func (m *memory) misnamed(n Name) []string {
	m.homeless.once.Do(func() {
		for o, e := range m.state.entries.All() {
			if e.service == nil {
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

	if meant, ok := suggest.Nearest(n.Name, slices.Values(near)); ok {
		all = append(all, Name{n.Namespace, meant}.String())
	}
	slices.Sort(all)
	return all
}
