package servicemodel_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// informative are the fields that may leave a table unchanged without a warning, with the reasons.
// The list also covers all fields below a field.
var informative = [][2]string{
	{"endpoint.Weight", "is a share: alone in a pool, an endpoint has all of it"},
	{"endpoint.Zone", "says where the endpoint is: Prefer uses it"},
	{"node.Addresses", "are facts: node ports and source ranges use them"},
	{"node.Forbidden", "may be the word for the default"},
	{"node.LocalPods.CIDRs", "may be in another range"},
	{"node.MasqueradeAll", "is for all services: this one may have no cluster IP"},
	{"node.NoEndpoints", "may be the word for the default"},
	{"node.NodePortAddresses.CIDRs", "may be in another range"},
	{"node.ServiceCIDRs", "may be in another range"},
	{"node.Zone", "is a fact: Prefer and hints use it"},
	{"service.Clients", "may deny what is not allowed, or be for another address"},
	{"service.Connections.Mode", "is not of the table: dataplane/flows carries it out"},
	{"service.ExternalIPs", "may be an address that answers already"},
	{"service.HostIPs", "may be an address that answers already"},
	{"service.LoadBalancerIPs", "may answer already; with Proxy the node need not answer"},
	{"service.LoadBalancerSourceRanges", "may be in another range"},
	{"service.Masquerade", "may say what the default is"},
	{"service.Ports[last].Port", "is required, also beside a node port alone"},
	{"service.Prefer", "prefers nothing if all endpoints are equally near"},
	{"service.SilentEndpoints", "is not of the table: dataplane/silence carries it out"},
	{"service.SlowStart", "makes weights grow in the course of time"},
}

// In a random valid state without warnings, each field of a service, of an endpoint and of the node
// is changed alone. Each change alters the table, makes the state invalid, or causes a warning.
func TestNoFieldIsSilentlyWithoutEffect(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	name := sm.Name{Namespace: "a", Name: "s"}
	for tried := 0; tried < 50; {
		base := r.healthy(name)
		before, err := sm.Resolve(nil, base)
		if err != nil || before.Warnings().Len() > 0 {
			continue
		}
		tried++
		text := string(ok(json.Marshal(base))(t))
		for _, v := range randstate.Variants(base, name) {
			after := mustResolve(t, nil, v.State)
			if after.Warnings().Len() > 0 || !slices.Equal(slices.Collect(before.HealthChecks()),
				slices.Collect(after.HealthChecks())) || !after.Equal(before) {
				continue
			}

			changed := string(ok(json.Marshal(v.State))(t))
			known := slices.ContainsFunc(informative, func(field [2]string) bool {
				rest, below := strings.CutPrefix(v.Name, field[0])
				return below && (rest == "" || strings.ContainsRune(".[ ", rune(rest[0])))
			})

			// An endpoint that serves is used anyway if no other endpoint is ready.
			known = known || v.Name == "endpoint.Condition" &&
				strings.Contains(changed, `"condition":"serving"`)
			if changed != text && (!known || unused(after, v.State.Service(name), v.Name)) {
				t.Errorf("%s has no effect, and no warning:\n%s\n%s", v.Name, text, changed)
			}
		}
	}
}

// unused reports whether a field of source ranges or of a masquerade policy concerns addresses that
// the service does not have. No reason of the list above excuses that.
func unused(t *sm.Table, svc *sm.Service, field string) bool {
	kinds := map[sm.Kind]bool{}
	for f := range t.Frontends() {
		kinds[f.Kind] = true
	}
	if svc == nil { // the name has changed
		return false
	}
	ranges, all := svc.LoadBalancerSourceRanges, svc.Masquerade == sm.MasqueradeAt(
		svc.Masquerade.ClusterIPs)
	for prefix, without := range map[string]bool{
		"service.LoadBalancerSourceRanges": !kinds[sm.LoadBalancer] && len(ranges) > 0,
		"service.Masquerade.ClusterIPs":    !kinds[sm.ClusterIP] && !all,
		"service.Masquerade.ExternalIPs":   !kinds[sm.ExternalIP] && !all,
		"service.Masquerade.NodePorts":     !kinds[sm.NodePort] && !all,
	} {
		if without && strings.HasPrefix(field, prefix) {
			return true
		}
	}

	return false
}

// healthy returns a state of one service with several ready endpoints of each family. The first
// endpoint is on this node.
func (r source) healthy(n sm.Name) sm.State {
	svc, node := r.service(n), r.node()
	if r.chance(50) {
		svc.ExternalIPs, svc.HostIPs, svc.LoadBalancerIPs = nil, nil, nil
		for i := range svc.Ports {
			svc.Ports[i].NodePort = 0
		}
	}

	node.Name, node.Zone, node.OnlyFamily = "n1", "z1", 0
	var eps []sm.Endpoint
	for i := range 4 + r.IntN(3) {
		e := sm.Endpoint{Addr: r.addr(sm.IPv4, 64+i, 9), Node: "n1", Zone: "z1",
			Weight: uint16(1 + r.IntN(5))}
		if i == 1 || i > 3 {
			e.Addr = r.addr(sm.IPv6, 64+i, 9)
		}
		if i > 0 {
			e.Node, e.Zone = pick(r, "n1", "n2"), pick(r, "z1", "z2")
		}
		for _, p := range svc.Ports {
			e.Ports = append(e.Ports, sm.EndpointPort{Name: p.Name, Protocol: p.Protocol,
				Port: 8080})
		}

		eps = append(eps, e)
	}

	return sm.State{}.WithNode(node).WithService(svc).WithEndpoints(n, eps)
}

// Each mistake has its warning, which names the field that the user wrote.
func TestWarnings(t *testing.T) {
	t.Parallel()
	other := sm.Name{Namespace: "default", Name: "wbe"}
	two := []sm.Endpoint{endpoint("10.64.0.1", here), endpoint("10.64.0.2")}
	svc := func(edits ...func(*sm.Service)) sm.State {
		return stateOf(thisNode, webService(edits...), two...)
	}
	eps := func(edit func(*sm.Endpoint)) sm.State {
		return stateOf(thisNode, webService(), endpoint("10.64.0.1", edit), two[1])
	}
	node := func(edit func(*sm.Node)) sm.State {
		n := thisNode
		edit(&n)
		return svc().WithNode(n)
	}
	for want, s := range map[string]sm.State{
		"": svc(),
		"no-service service default/wbe: endpoints: there is no service of this name": svc().
			WithEndpoints(other, two),
		"no-address service default/web: ports: there are none, so the service answers " +
			"nowhere": svc(func(s *sm.Service) { s.Ports = nil }),
		"no-address service default/web: clusterIPs: the service has no address and no node " +
			"port that this node serves": svc(func(s *sm.Service) {
			s.ClusterIPs, s.Ports[0].NodePort = nil, 0
		}),
		"no-effect service default/web: loadBalancerSourceRanges: only load balancer IPs are " +
			"restricted, and the node answers at none of IPv4": svc(func(s *sm.Service) {
			s.LoadBalancerSourceRanges = prefixes("192.0.2.0/24")
		}),
		"not-ready service default/web: endpoints: 2 endpoints, none ready": stateOf(thisNode,
			webService(), endpoint("10.64.0.1", notReady),
			endpoint("10.64.0.2", dying)),
		"no-port service default/web: ports[0].name: 2 endpoints, none has a port named " +
			"web/tcp: they have http/tcp": svc(func(s *sm.Service) { s.Ports[0].Name = "web" }),
		"no-port service default/web: endpoints[0].ports: 0 of 1 have the name and protocol of " +
			"a port of the service": eps(func(e *sm.Endpoint) { e.Ports[0].Name = "web" }),
		"other-family service default/web: externalIPs[0]: no cluster IP is IPv6, so the " +
			"service does not exist in this family": svc(func(s *sm.Service) {
			s.ExternalIPs = addrs("2001:db8::7")
		}),
		"other-family service default/web: endpoints[0].addr: 0 of 1 ports of the service have " +
			"an address of IPv6": eps(func(e *sm.Endpoint) { e.Addr = ip("fd64::1") }),
		"other-family service default/web: endpoints: all are of IPv4, so nobody serves the " +
			"service's addresses of IPv6": svc(func(s *sm.Service) {
			s.ClusterIPs = append(s.ClusterIPs, ip("fd00:10:96::10"))
		}),
		"no-effect service default/web: endpoints[1].forZones: is empty, so the hints of the " +
			"other endpoints have no effect": eps(func(e *sm.Endpoint) {
			e.ForZones = []string{"z1"}
		}),
		"no-effect service default/web: endpoints.forZones: the node has no zone": node(
			func(n *sm.Node) { n.Zone = "" }).WithEndpoints(web, []sm.Endpoint{
			endpoint("10.64.0.1", func(e *sm.Endpoint) { e.ForZones = []string{"z1"} })}),
		"no-effect service default/web: prefer: the node has no zone": node(func(n *sm.Node) {
			n.Zone = ""
		}).WithService(webService(func(s *sm.Service) { s.Prefer = "zone" })),
		"no-effect service default/web: prefer: topology hints of the endpoints decide": svc(
			func(s *sm.Service) { s.Prefer = "node" }).WithEndpoints(web, []sm.Endpoint{
			endpoint("10.64.0.1", func(e *sm.Endpoint) { e.ForNodes = []string{"here"} })}),
		"no-effect service default/web: endpoints[0].weight: the scheduler rr does " +
			"not follow weights": eps(func(e *sm.Endpoint) {
			e.Weight = 3
		}).WithService(webService(func(s *sm.Service) { s.Scheduler = sm.RoundRobin })),
		"no-effect node: localhostNodePorts: nodePortAddresses selects no address of " +
			"127.0.0.0/8": node(func(n *sm.Node) {
			n.LocalhostNodePorts, n.NodePortAddresses.Primary = true, true
		}),
		"no-effect node: nodePortAddresses.primary: the node has no address, so no node port " +
			"answers": node(func(n *sm.Node) {
			n.Addresses, n.NodePortAddresses.Primary = nil, true
		}),
	} {
		table := mustResolve(t, nil, s)
		var lines []string
		for w := range table.Warnings().All() {
			lines = append(lines, string(w.Kind)+" "+w.String())
		}
		require.Equal(t, want, strings.Join(lines, "\n"))
		require.Equal(t, len(lines), table.Warnings().Len())
		require.Equal(t, want == "", table.Warnings().IsZero())
	}
}

// A given source has an effect if some connection of its family is masqueraded: by the policy, or
// because the node masquerades neighbours.
func TestGivenSourcesThatNobodyGetsAreWarnedOf(t *testing.T) {
	t.Parallel()
	warned := func(node sm.Node, edit func(*sm.Service), ips ...string) (fields []string) {
		svc := webService(edit, func(s *sm.Service) { s.MasqueradeIPs = addrs(ips...) })
		state := stateOf(node, svc, endpoint("10.64.0.1", here))
		for w := range mustResolve(t, nil, state).Warnings().All() {
			require.Equal(t, sm.WarnNoEffect, w.Kind, w)
			fields = append(fields, w.Field)
		}
		return fields
	}

	never := func(s *sm.Service) { s.Masquerade = sm.MasqueradeAt(sm.MasqueradeNever) }
	neighbours := thisNode
	neighbours.MasqueradeNeighbours = true
	usual := func(*sm.Service) {}
	require.Empty(t, warned(thisNode, usual, "192.0.2.9"))
	require.Equal(t, []string{"masqueradeIPs[0]"}, warned(thisNode, never, "192.0.2.9"))
	require.Empty(t, warned(neighbours, never, "192.0.2.9"))
	require.Equal(t, []string{"masqueradeIPs[1]"}, warned(thisNode, func(s *sm.Service) {
		s.ClusterIPs, s.Ports[0].NodePort = s.ClusterIPs[:1], 0
	}, "192.0.2.9", "2001:db8::9"))
}

// The cost of a change depends on its size, and only new warnings are reported.
func TestNewWarnings(t *testing.T) {
	t.Parallel()
	s := stateOf(thisNode, webService())
	for i := range 100 {
		s = s.WithEndpoints(sm.Name{Namespace: "other", Name: numbered(i)},
			[]sm.Endpoint{endpoint("10.64.0.1")})
	}

	before := mustResolve(t, nil, s)
	require.Equal(t, 100, before.Warnings().Len())
	s = s.WithService(webService(func(s *sm.Service) { s.Ports = nil })).WithoutService(
		sm.Name{Namespace: "other", Name: numbered(7)})
	after := mustResolve(t, before, s).Warnings()
	require.Equal(t, 100, after.Len())
	fresh := slices.Collect(after.Since(before.Warnings()))
	require.Len(t, fresh, 1)
	require.Equal(t, web, fresh[0].Service)
	require.Empty(t, slices.Collect(after.Since(after)))
	require.JSONEq(t, `[{"kind": "no-address", "service": "default/web", "field": "ports",
		"reason": "there are none, so the service answers nowhere"}]`, string(ok(json.Marshal(
		mustResolve(t, nil, stateOf(thisNode, webService(func(s *sm.Service) {
			s.Ports = nil
		}))).Warnings()))(t)))
}

// A range of node ports does not map them to the ports of the range.
func TestNodePortsThatDifferFromTheirRangeAreWarnedOf(t *testing.T) {
	t.Parallel()
	for nodePort, want := range map[uint16]string{80: "", 0: "", 30080: "service default/web: " +
		"ports[0].nodePort: packets keep their ports, so node port 30080 goes to port 30080 of " +
		"the endpoints, and not to 80"} {
		for _, port := range []uint16{0, 8080} {
			svc := webService(func(s *sm.Service) {
				s.Ports[0].EndPort, s.Ports[0].NodePort = 90, nodePort
			})
			state := stateOf(thisNode, svc, endpoint("10.64.0.1",
				func(e *sm.Endpoint) { e.Ports[0].Port = port }))
			wants := want
			if port == 8080 { // where all packets go
				wants = ""
			}
			require.Equal(t, wants, mustResolve(t, nil, state).Warnings().String(), port)
		}
	}
}
