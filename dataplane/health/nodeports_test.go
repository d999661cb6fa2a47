package health_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/internal/test/servetest"
	"github.com/kernlb/kernlb/servicemodel"
)

var web = servicemodel.Name{Namespace: "default", Name: "web"}

// table returns the table of a node with a service that has health check port 32000, cluster IPs,
// and ready endpoints on the node.
func table(t *testing.T, node servicemodel.Node, clusterIPs []string, local ...string,
) *servicemodel.Table {
	t.Helper()
	node.Name = "n1"
	svc := &servicemodel.Service{Name: web, HealthCheckNodePort: 32000,
		ExternalTrafficPolicy: servicemodel.PolicyLocal,
		Ports:                 []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
	for _, a := range clusterIPs {
		svc.ClusterIPs = append(svc.ClusterIPs, netip.MustParseAddr(a))
	}
	var eps []servicemodel.Endpoint
	for _, a := range local {
		eps = append(eps, servicemodel.Endpoint{Addr: netip.MustParseAddr(a), Node: "n1",
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
	}

	s := servicemodel.State{}.WithNode(node).WithService(svc).WithEndpoints(web, eps)
	resolved, err := servicemodel.Resolve(nil, s)
	require.NoError(t, err)
	return resolved
}

// ports simulates the ports of a node: it listens on loopback instead of the requested address.
type ports struct {
	mu   sync.Mutex
	open map[string]net.Addr // by the requested address
	busy string              // another program holds this address
}

func (p *ports) listen(ctx context.Context, network, address string) (net.Listener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if address == p.busy {
		return nil, errors.New("address already in use")
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if p.open == nil {
		p.open = map[string]net.Addr{}
	}
	p.open[network+" "+address] = l.Addr()
	return &listener{Listener: l, closed: func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.open, network+" "+address)
	}}, nil
}

type listener struct {
	net.Listener
	once   sync.Once
	closed func()
}

func (l *listener) Close() error {
	l.once.Do(l.closed)
	return l.Listener.Close()
}

// free frees the busy address.
func (p *ports) free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = ""
}

func (p *ports) addresses() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var l []string
	for a := range p.open {
		l = append(l, a)
	}
	slices.Sort(l)
	return l
}

// get sends a request to an address that the server has opened.
func (p *ports) get(t *testing.T, address, path string) (int, http.Header, string) {
	t.Helper()
	p.mu.Lock()
	a := p.open[address]
	p.mu.Unlock()
	require.NotNil(t, a, "nobody listens on %s", address)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+a.String()+path,
		nil)
	require.NoError(t, err)
	r, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, r.Header, string(body)
}

func TestAnswersAreThoseOfKubeProxy(t *testing.T) {
	t.Parallel()
	var node ports
	healthy := true
	s := health.NewNodePorts(&health.NodePortsConfig{Listen: node.listen,
		Healthy: func() bool { return healthy }})
	defer s.Close()
	both := []string{"10.96.0.10", "fd00::10"}
	require.NoError(t, s.Sync(t.Context(), table(t, servicemodel.Node{}, both,
		"10.244.1.1", "10.244.1.2", "fd00:1::1")))
	require.Equal(t, []string{"tcp4 0.0.0.0:32000", "tcp6 [::]:32000"}, node.addresses())

	code, header, body := node.get(t, "tcp4 0.0.0.0:32000", "/whatever")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "application/json", header.Get("Content-Type"))
	require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
	require.Equal(t, "2", header.Get("X-Load-Balancing-Endpoint-Weight"))
	require.Equal(t, "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n"+
		"\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n"+
		"\t\"serviceProxyHealthy\": true\n}", body)
	_, header, _ = node.get(t, "tcp6 [::]:32000", "/")
	require.Equal(t, "1", header.Get("X-Load-Balancing-Endpoint-Weight"))

	healthy = false
	code, _, body = node.get(t, "tcp4 0.0.0.0:32000", "/")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, `"serviceProxyHealthy": false`)
	healthy = true

	// One family has lost its endpoints. The open connection stays.
	require.NoError(t, s.Sync(t.Context(), table(t, servicemodel.Node{}, both, "fd00:1::1")))
	code, header, _ = node.get(t, "tcp4 0.0.0.0:32000", "/")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "0", header.Get("X-Load-Balancing-Endpoint-Weight"))
	code, _, _ = node.get(t, "tcp6 [::]:32000", "/")
	require.Equal(t, http.StatusOK, code)
}

func TestPortsAreOpenedAndClosedByDifference(t *testing.T) {
	t.Parallel()
	var node ports
	s := health.NewNodePorts(&health.NodePortsConfig{Listen: node.listen,
		Addresses: func() ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("192.0.2.10"),
				netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::10")}, nil
		}})
	defer s.Close()
	some := servicemodel.Node{NodePortAddresses: servicemodel.NodePortAddresses{
		CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
	v4, both := []string{"10.96.0.10"}, []string{"10.96.0.10", "fd00::10"}
	for _, step := range []struct {
		about string
		table *servicemodel.Table
		want  []string
	}{
		{"one family", table(t, servicemodel.Node{}, v4), []string{"tcp4 0.0.0.0:32000"}},
		{"some addresses, of one family only", table(t, some, both),
			[]string{"tcp4 192.0.2.10:32000", "tcp6 [::]:32000"}},
		{"nothing", nil, nil},
	} {
		require.NoError(t, s.Sync(t.Context(), step.table), step.about)
		require.Equal(t, step.want, node.addresses(), step.about)
	}

	require.NoError(t, s.Sync(t.Context(), table(t, some, both)))
	require.NoError(t, s.Close())
	require.Empty(t, node.addresses())
	require.ErrorIs(t, s.Sync(t.Context(), nil), net.ErrClosed)
}

func TestAPortThatIsTakenIsTriedAgain(t *testing.T) {
	t.Parallel()
	node := ports{busy: "[::]:32000"}
	s := health.NewNodePorts(&health.NodePortsConfig{Listen: node.listen,
		RetryAfter: time.Millisecond})
	defer s.Close()
	both := table(t, servicemodel.Node{}, []string{"10.96.0.10", "fd00::10"}, "10.244.1.1")
	err := s.Sync(t.Context(), both)
	var failed *health.ListenError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, web, failed.Service)
	require.EqualError(t, err,
		"health check node port of default/web at [::]:32000: address already in use")
	require.Equal(t, []string{"tcp4 0.0.0.0:32000"}, node.addresses())
	node.free()
	require.Eventually(t, func() bool { return len(node.addresses()) == 2 }, time.Minute,
		time.Millisecond, "without another Sync")
	code, header, _ := node.get(t, "tcp6 [::]:32000", "/")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "0", header.Get("X-Load-Balancing-Endpoint-Weight"))
}

// A program that logs each error only once compares the texts, so the order must be stable.
func TestPortsThatAreTakenAreNamedInOrder(t *testing.T) {
	t.Parallel()
	s := health.NewNodePorts(&health.NodePortsConfig{RetryAfter: time.Hour,
		Listen: func(context.Context, string, string) (net.Listener, error) {
			return nil, errors.New("address already in use")
		}})
	defer s.Close()
	both := table(t, servicemodel.Node{}, []string{"10.96.0.10", "fd00::10"}, "10.244.1.1")
	for range 20 {
		require.EqualError(t, s.Sync(t.Context(), both), "health check node port of default/web "+
			"at 0.0.0.0:32000: address already in use\nhealth check node port of default/web at "+
			"[::]:32000: address already in use")
	}
}

func TestWithoutAddressesInTheRangesNothingIsOpened(t *testing.T) {
	t.Parallel()
	s := health.NewNodePorts(nil) // looks at the addresses of this machine
	elsewhere := servicemodel.Node{NodePortAddresses: servicemodel.NodePortAddresses{
		CIDRs: []netip.Prefix{netip.MustParsePrefix("203.0.113.77/32")}}}
	require.NoError(t, s.Sync(t.Context(), table(t, elsewhere, []string{"10.96.0.10"})))
	require.NoError(t, s.Close())
}

func TestHostileClientsOfHealthChecks(t *testing.T) {
	t.Parallel()
	held := table(t, servicemodel.Node{}, []string{"10.96.0.10"}, "10.244.1.1")
	servetest.Hostile(t, "/", 1024, func(l net.Listener) func() {
		s := health.NewNodePorts(&health.NodePortsConfig{
			Listen: func(context.Context, string, string) (net.Listener, error) { return l, nil }})
		require.NoError(t, s.Sync(t.Context(), held))
		return func() { require.NoError(t, s.Close()) }
	})
}
