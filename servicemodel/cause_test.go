package servicemodel_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func httpNamed(name string, p sm.Protocol) func(*sm.Endpoint) {
	return func(e *sm.Endpoint) { e.Ports[0].Name, e.Ports[0].Protocol = name, p }
}

func quiesced(e *sm.Endpoint) { e.Condition = sm.Quiesced }

func sixToo(s *sm.Service) { s.ClusterIPs = addrs("10.96.0.1", "fd96::1") }

// causes are services whose frontend at an address has no endpoints, and the expected texts.
var causes = []struct {
	name      string
	service   func(*sm.Service)
	endpoints []sm.Endpoint
	at        string
	kind      string
	want      string
}{
	{"no endpoints", anyService, nil, "10.96.0.1", "no-endpoints",
		"the service has no endpoints; endpoints exist under default/wep, shop/web"},
	{"another family", sixToo, []sm.Endpoint{localEndpoint, remoteEndpoint}, "fd96::1",
		"no-family", "no endpoint of family IPv6; 2 endpoints are of the other"},
	{"a misspelt port", anyService, []sm.Endpoint{
		endpoint("10.64.0.1", httpNamed("htpp", sm.TCP)),
		endpoint("10.64.0.2", httpNamed("http", sm.UDP)),
		endpoint("10.64.0.3", httpNamed("", sm.TCP)), endpoint("fd64::1")}, "10.96.0.1",
		"no-port",
		`3 endpoints, none has a port named http/tcp: they have ""/tcp, htpp/tcp, http/udp`},
	{"a port without a name", func(s *sm.Service) { s.Ports[0].Name = "" },
		[]sm.Endpoint{localEndpoint}, "10.96.0.1", "no-port",
		"1 endpoint, none has a port without a name for tcp: they have http/tcp"},
	{"no ports", anyService, []sm.Endpoint{endpoint("10.64.0.1", func(e *sm.Endpoint) {
		e.Ports = nil
	})}, "10.96.0.1", "no-port", "1 endpoint, none has a port named http/tcp: they have none"},
	{"not ready", anyService, []sm.Endpoint{endpoint("10.64.0.1", notReady),
		endpoint("10.64.0.2", dying), endpoint("10.64.0.3", notReady),
		endpoint("10.64.0.4", httpNamed("x", sm.TCP))}, "10.96.0.1", "not-ready",
		"3 endpoints, none ready"},
	{"quiesced", anyService, []sm.Endpoint{endpoint("10.64.0.1", notReady),
		endpoint("10.64.0.2", quiesced)}, "10.96.0.1", "not-ready",
		"2 endpoints, none ready and not quiesced (1 of them quiesced)"},
	{"not here", externalLocal, []sm.Endpoint{remoteEndpoint, endpoint("10.64.0.3", terminating),
		endpoint("10.64.0.4", anywhere), endpoint("10.64.0.5", here, notReady)}, "0.0.0.0",
		"not-local", "externalTrafficPolicy is Local and no ready endpoint is on node here; " +
			"2 endpoints are elsewhere; 1 endpoint names no node"},
	{"not here, from inside", internalLocal, []sm.Endpoint{remoteEndpoint}, "10.96.0.1",
		"not-local", "internalTrafficPolicy is Local and no ready endpoint is on node here; " +
			"1 endpoint is elsewhere"},
	{"a terminating one serves", anyService, []sm.Endpoint{endpoint("10.64.0.1", terminating)},
		"10.96.0.1", "", ""},
}

func anyService(*sm.Service) {}

func TestCauses(t *testing.T) {
	t.Parallel()
	for _, tt := range causes {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := stateOf(thisNode, webService(tt.service), tt.endpoints...)
			for _, n := range []sm.Name{{Namespace: "default", Name: "wep"},
				{Namespace: "shop", Name: "web"}, {Namespace: "default", Name: "other"}} {
				s = s.WithEndpoints(n, []sm.Endpoint{remoteEndpoint})
			}

			table := mustResolve(t, nil, s)
			port := uint16(80)
			if tt.at == "0.0.0.0" {
				port = 30080
			}
			f := table.Frontend(sm.FrontendKey{Addr: ip(tt.at), Protocol: sm.TCP, Port: port})
			c := table.Cause(f)
			require.Equal(t, tt.want, c.String())
			require.Equal(t, tt.kind, c.Kind)

			other := stateOf(thisNode, webService(tt.service), endpoint("10.64.0.1", here),
				endpoint("fd64::1", here))
			want := "unknown"
			if tt.kind == "" {
				want = ""
			}
			if tt.name != "a port without a name" {
				require.Equal(t, want, mustResolve(t, nil, other).Cause(f).Kind, "of another state")
			}
			require.Equal(t, want, mustResolve(t, nil, sm.State{}).Cause(f).Kind,
				"of no state")
		})
	}
}

// For a table that was read from a kernel, the cause comes from its verdicts and pools.
func TestCausesInTheKernel(t *testing.T) {
	t.Parallel()
	resolved := tableOf(t, thisNode, webService(externalLocal), remoteEndpoint)
	read := ok(sm.NewTable(resolved.Contents()))(t)
	f := read.Frontend(sm.FrontendKey{Addr: ip("0.0.0.0"), Protocol: sm.TCP, Port: 30080})
	require.Equal(t, "externalTrafficPolicy is Local and no ready endpoint is on this node; 1 "+
		"endpoint is elsewhere", read.Cause(f).String())

	rejecting := tableOf(t, thisNode, webService())
	for f := range rejecting.Frontends() {
		require.Equal(t, "no endpoint can be used", read.Cause(f).String())
	}
}

// refuses reports whether a frontend rejects or drops packets from somewhere.
func refuses(f *sm.Frontend) bool { return !f.Internal.Balances() || !f.External.Balances() }

// requireTrue checks a cause against the endpoints, without the code under test.
func requireTrue(t *testing.T, s sm.State, f *sm.Frontend, c sm.Cause) {
	t.Helper()
	eps := s.Endpoints(f.Service.Name)
	count := func(is ...func(*sm.Endpoint) bool) (n int) {
		for i := range eps {
			ok := true
			for _, is := range is {
				ok = ok && is(&eps[i])
			}
			if ok {
				n++
			}
		}

		return n
	}

	family := func(e *sm.Endpoint) bool { return e.Addr.Is4() == f.Key.Addr.Is4() }
	port := func(e *sm.Endpoint) bool {
		return slices.ContainsFunc(e.Ports, func(p sm.EndpointPort) bool {
			return p.Name == f.Service.Port && p.Protocol == f.Service.Protocol
		})
	}

	local := func(e *sm.Endpoint) bool { return e.Node != "" && e.Node == s.Node().Name }
	switch c.Kind {
	case "no-endpoints":
		require.Empty(t, eps)
	case "no-family":
		require.Zero(t, count(family))
		require.Equal(t, len(eps), c.Endpoints)
	case "no-port":
		require.Zero(t, count(family, port))
		require.Equal(t, count(family), c.Endpoints)
	case "not-ready":
		require.Zero(t, count(family, port, usable))
		require.Equal(t, count(family, port), c.Endpoints)
	case "not-local":
		once := func(e *sm.Endpoint) bool { // duplicates may be listed elsewhere, too
			return count(func(o *sm.Endpoint) bool { return o.Addr == e.Addr }) == 1
		}
		require.Zero(t, count(family, port, usable, local, once))
		require.Positive(t, c.Endpoints)
		require.LessOrEqual(t, c.Endpoints, count(family, port, usable))
	default:
		require.Fail(t, "no cause is known", "%v: %v", f, c)
	}
}

// Every frontend that rejects or drops has a true cause. No other frontend has a cause.
func TestEveryRefusalHasATrueCause(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	seen := map[string]int{}
	for range 3000 {
		s := r.state()
		table := mustResolve(t, nil, s)
		for f := range table.Frontends() {
			c := table.Cause(f)
			seen[c.Kind]++
			if !refuses(f) {
				require.Equal(t, "", c.Kind, "%v", f)
				continue
			}

			requireTrue(t, s, f, c)
			require.Equal(t, c.Kind == "not-local", f.External == sm.Drop)
			require.NotEmpty(t, c.String())
		}
	}

	for _, k := range []string{"", "no-endpoints", "no-family",
		"no-port", "not-ready", "not-local"} {
		require.Positive(t, seen[k], "%v", k)
	}
}

// A decision has a cause exactly where the packet is rejected or dropped.
func TestDecisionsHaveCauses(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	seen := map[string]int{}
	for range 300 {
		s := r.state()
		table := mustResolve(t, nil, s)
		here := sm.Locality(some(r, 4, func() netip.Addr { return r.addr(r.family(), 192, 6) }))
		for range 100 {
			p := r.packet(s, here)
			d := table.Decide(p, here)
			refused := d.Outcome == sm.Rejected || d.Outcome == sm.Dropped
			require.Equal(t, refused, d.Cause.Kind != "", "%v: %v", p, d)
			require.NotEqual(t, "unknown", d.Cause.Kind, "%v: %v", p, d)
			require.Contains(t, d.Reason, d.Cause.String())
			seen[d.Cause.Kind]++
		}
	}

	require.Positive(t, seen["source"])
	require.Positive(t, seen["other-port"])
	require.Positive(t, seen["no-service"])
}

// usable reports whether clients may be sent to an endpoint.
func usable(e *sm.Endpoint) bool {
	return e.Condition == sm.Ready || e.Condition == sm.Serving
}
