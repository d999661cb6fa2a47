package proportion

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/servicemodel"
)

// web is the service that changes.
var web = servicemodel.Name{Namespace: "default", Name: "web"}

// addr returns the i-th address after a first address.
func addr(first string, i int) netip.Addr {
	a := netip.MustParseAddr(first).As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])+uint32(i))
	return netip.AddrFrom4(a)
}

// small returns a state with few endpoints, in which all fields have values that matter.
func small(external servicemodel.TrafficPolicy) servicemodel.State {
	svc := &servicemodel.Service{Name: web,
		ClusterIPs:      []netip.Addr{addr("10.96.0.1", 0)},
		LoadBalancerIPs: []servicemodel.LoadBalancerIP{{Addr: addr("203.0.113.6", 0)}},
		LoadBalancerSourceRanges: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200}), 16)},
		ExternalIPs: []netip.Addr{addr("203.0.113.5", 0)},
		Ports: []servicemodel.ServicePort{{Name: "http", Protocol: servicemodel.TCP, Port: 80,
			NodePort: 30080}},
		ExternalTrafficPolicy: external,
	}
	if external == servicemodel.PolicyLocal {
		svc.HealthCheckNodePort, svc.SessionAffinity.ClientIP = 65000, true
	}
	node := servicemodel.Node{Name: "node", Zone: "zone", LocalPods: servicemodel.PodDetector{
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/9")}}}
	return servicemodel.State{}.WithNode(node).WithService(svc).WithEndpoints(web,
		[]servicemodel.Endpoint{endpoint(0), endpoint(1)})
}

// endpoint returns the i-th endpoint. Every fourth endpoint is on the node, and half of all
// endpoints are in its zone. Some of these are not ready, so that a preference for near endpoints
// does not give them all traffic.
func endpoint(i int) servicemodel.Endpoint {
	e := servicemodel.Endpoint{Addr: addr("10.16.0.1", i),
		Node: "node", Zone: "zone", Ports: []servicemodel.EndpointPort{{Name: "http",
			Protocol: servicemodel.TCP, Port: 8080}}}
	if i%4 > 0 {
		e.Node = "other"
	}
	if i%4 > 1 {
		e.Zone = "elsewhere"
	} else if i%8 > 3 {
		e.Condition = servicemodel.NotReady
	}

	return e
}

// grower returns a state of a size.
type grower func(size) servicemodel.State

// variants yields the fields, and for each field a function that returns states of any size in
// which the field has another value.
func variants(external servicemodel.TrafficPolicy) iter.Seq2[string, grower] {
	return func(yield func(string, grower) bool) {
		base, had := small(external), map[string]int{}
		for _, v := range randstate.Variants(base, web) {
			most := 1
			if v.Name == "service.Scheduler" || v.Name == "service.Prefer" {
				most = 100
			}
			had[v.Name]++
			if had[v.Name] > most ||
				external == servicemodel.PolicyLocal && (strings.HasPrefix(v.Name, "node.") ||
					strings.HasPrefix(v.Name, "endpoint.")) {
				continue // these fields were there with the other policy
			}

			grow := func(s size) servicemodel.State { return grown(base, v.State, s) }
			if !yield(fmt.Sprintf("%s#%d", v.Name, had[v.Name]), grow) {
				return
			}
		}
	}
}

// grown returns a variant of base with more endpoints, another number of frontends, and other
// services.
func grown(base, v servicemodel.State, s size) servicemodel.State {
	var svc servicemodel.Service
	for only := range v.Services() {
		svc = *only
	}
	like, eps := v.Endpoints(svc.Name), make([]servicemodel.Endpoint, s.endpoints)
	for i := range eps {
		eps[i] = endpoint(i)
		if i%3 == 0 {
			differ(&eps[i], base.Endpoints(web)[0], like[0])
		}
	}

	v = others(v, svc, s.others)
	if s.frontends == 1 {
		svc.LoadBalancerIPs, svc.ExternalIPs = nil, nil
		svc.Ports = slices.Clone(svc.Ports)
		for i := range svc.Ports {
			svc.Ports[i].NodePort = 0
		}
	}

	for i := range s.frontends - 4 {
		svc.ExternalIPs = append(slices.Clip(svc.ExternalIPs), addr("203.0.113.100", i))
	}
	return v.WithService(&svc).WithEndpoints(svc.Name, eps)
}

// differ copies to an endpoint the fields in which was and is differ, except the address.
func differ(e *servicemodel.Endpoint, was, is servicemodel.Endpoint) {
	a, b, to := reflect.ValueOf(was), reflect.ValueOf(is), reflect.ValueOf(e).Elem()
	for i := range a.NumField() {
		if f := a.Type().Field(i).Name; f != "Addr" &&
			!reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			to.Field(i).Set(b.Field(i))
		}
	}
}

// others adds n services like svc, with one endpoint each.
func others(s servicemodel.State, svc servicemodel.Service, n int) servicemodel.State {
	for i := range n {
		other := another(svc, i)
		s = s.WithService(other).WithEndpoints(other.Name,
			[]servicemodel.Endpoint{otherEndpoint(i)})
	}

	return s
}

// another returns the i-th other service.
func another(svc servicemodel.Service, i int) *servicemodel.Service {
	svc.Name = servicemodel.Name{Namespace: "others", Name: fmt.Sprint("other-", i)}
	svc.ClusterIPs, svc.ExternalIPs = []netip.Addr{addr("10.100.0.1", i)}, nil
	svc.LoadBalancerIPs = []servicemodel.LoadBalancerIP{{Addr: addr("203.1.0.1", i)}}
	svc.HostIPs, svc.Ports = nil, slices.Clone(svc.Ports)
	for k := range svc.Ports {
		svc.Ports[k].NodePort = uint16(31000 + 16000*k + i)
	}
	if svc.HealthCheckNodePort != 0 {
		svc.HealthCheckNodePort = uint16(1000 + i)
	}
	return &svc
}

func otherEndpoint(i int) servicemodel.Endpoint {
	e := endpoint(0)
	e.Addr = addr("10.32.0.1", i)
	return e
}

// change is a small change of a state.
type change struct {
	name string
	make func(servicemodel.State) servicemodel.State
}

// changes are the changes whose work is compared.
var changes = []change{
	{"endpoint replaced", edit(func(e *servicemodel.Endpoint) { e.Addr = addr("10.24.0.1", 0) })},
	{"weight changed", edit(func(e *servicemodel.Endpoint) { e.Weight = 3 })},
	{"endpoint not ready", edit(func(e *servicemodel.Endpoint) {
		e.Condition = servicemodel.NotReady
	})},
	{"service added", func(s servicemodel.State) servicemodel.State {
		other := another(*changing(s), 12000)
		return s.WithService(other).WithEndpoints(other.Name,
			[]servicemodel.Endpoint{otherEndpoint(12000)})
	}},
	{"service removed", func(s servicemodel.State) servicemodel.State {
		return s.WithoutService(another(*changing(s), 0).Name)
	}},
}

// changing returns the service that changes.
func changing(s servicemodel.State) *servicemodel.Service {
	for svc := range s.Services() {
		if svc.Name.Namespace != "others" {
			return svc
		}
	}

	return nil
}

// edit returns a change of an endpoint in the middle that is on the node and ready.
func edit(f func(*servicemodel.Endpoint)) func(servicemodel.State) servicemodel.State {
	return func(s servicemodel.State) servicemodel.State {
		svc := changing(s)
		eps := s.Endpoints(svc.Name)
		f(&eps[len(eps)/2/24*24+8%len(eps)])
		return s.WithEndpoints(svc.Name, eps)
	}
}
