package diagnose_test

import (
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/diagnose"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

var opens = map[string]func(netns.Namespace) (backends.Backend, error){
	nftables.Name: func(ns netns.Namespace) (backends.Backend, error) {
		return nftables.New(&nftables.Config{NetNS: ns})
	},
	iptables.Name: func(ns netns.Namespace) (backends.Backend, error) {
		return iptables.New(&iptables.Config{NetNS: ns})
	},
	ipvs.Name: func(ns netns.Namespace) (backends.Backend, error) {
		return ipvs.New(&ipvs.Config{NetNS: ns})
	},
}

// network is a cluster with a service of two pods.
type network struct {
	*netnstest.Cluster
	table *servicemodel.Table
	ipvs  bool
}

func newNetwork(t *testing.T, backend string) *network {
	t.Helper()
	n := &network{Cluster: netnstest.Start(t, netnstest.Options{}), ipvs: backend == ipvs.Name}
	b, err := opens[backend](n.Node.NS.NetNS())
	if n.ipvs && errors.Is(err, kernelerr.ErrMissingModule) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	name := servicemodel.Name{Namespace: "default", Name: "web"}
	svc := servicemodel.Service{Name: name, ClusterIPs: []netip.Addr{
		netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")}}
	var endpoints []servicemodel.Endpoint
	var ports []servicemodel.EndpointPort
	for _, p := range netnstest.Protocols() {
		svc.Ports = append(svc.Ports, servicemodel.ServicePort{Name: p.String(), Protocol: p,
			Port: 80})
		ports = append(ports, servicemodel.EndpointPort{Name: p.String(), Protocol: p, Port: 8080})
	}

	for _, pod := range n.Pods[1:] {
		endpoints = append(endpoints, servicemodel.Endpoint{Addr: pod.IPv4, Ports: ports},
			servicemodel.Endpoint{Addr: pod.IPv6, Ports: ports})
		for _, p := range netnstest.Protocols() {
			require.NoError(t, pod.Serve(p, 8080))
		}
	}

	r, err := dataplane.New(b, nil).Apply(t.Context(), servicemodel.State{}.WithNode(
		servicemodel.Node{Addresses: n.NodeAddrs()}).WithService(&svc).
		WithEndpoints(name, endpoints))
	require.NoError(t, err)
	n.table = r.Changes.New
	return n
}

// run diagnoses for a client in pod1.
func (n *network) run(t *testing.T, to string) *diagnose.Report {
	t.Helper()
	cfg := &diagnose.Config{NetNS: n.Node.NS.NetNS(), From: n.Pods[0].NS.NetNS(), Table: n.table,
		Here: n.NodeAddrs(), Direct: n.ipvs}
	require.NoError(t, cfg.To.UnmarshalText([]byte(to)))
	r, err := diagnose.Run(t.Context(), cfg)
	require.NoError(t, err)
	return r
}

// With each backend, in each family and over each protocol: a service that works, and one endpoint
// that does not, which is named. The rules of the node stay as they were.
func TestKernelEveryBackend(t *testing.T) {
	t.Parallel()
	for backend := range opens {
		for _, at := range []string{"10.96.0.10:80", "[fd00:10:96::10]:80"} {
			t.Run(backend+" "+at, func(t *testing.T) {
				t.Parallel()
				n := newNetwork(t, backend)
				before := nstest.Run(t, n.Node.NS, "nft -s list ruleset")
				for _, p := range netnstest.Protocols() {
					r := n.run(t, at+"/"+strings.ToLower(p.String()))
					require.Nil(t, r.Fault, "%v", r)
					if p != servicemodel.SCTP {
						require.Len(t, r.Endpoints, 2)
						require.True(t, strings.HasPrefix(r.Endpoints[0].Says, "answers"), "%v", r)
					}
				}

				require.Equal(t, before, nstest.Run(t, n.Node.NS, "nft -s list ruleset"))

				nstest.NFT(t, n.Pods[2].NS, `table inet x { chain c {
					type filter hook input priority 0; meta l4proto tcp drop; }; }`)
				r := n.run(t, at+"/tcp")
				require.NotNil(t, r.Fault, "%v", r)
				require.Equal(t, diagnose.Silent, r.Fault.Kind, "%v", r)
				addr := n.Pods[2].Addr(n.table.Frontend(r.To).Key.Addr)
				require.Contains(t, r.Fault.Says, addr.String(), "%v", r)
			})
		}
	}
}

// A refused datagram shows that nothing listens; an unanswered datagram shows nothing.
func TestKernelUDP(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, nftables.Name)
	nstest.NFT(t, n.Pods[1].NS, `table inet x { chain c {
		type filter hook input priority 0; meta l4proto udp drop; }; }`)
	r := n.run(t, "10.96.0.10:80/udp")
	require.Nil(t, r.Fault, "%v", r)
	require.Contains(t, r.Notes, "10.244.1.2:8080 said nothing, as UDP endpoints may")
	nstest.NFT(t, n.Pods[2].NS, `table inet x { chain c {
		type filter hook input priority 0; meta l4proto udp reject; }; }`)
	r = n.run(t, "10.96.0.10:80/udp")
	require.NotNil(t, r.Fault, "%v", r)
	require.Equal(t, diagnose.NotListening, r.Fault.Kind)
}

// The node itself is a client, too.
func TestKernelFromTheNode(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, nftables.Name)
	cfg := &diagnose.Config{NetNS: n.Node.NS.NetNS(), Table: n.table, Here: n.NodeAddrs()}
	require.NoError(t, cfg.To.UnmarshalText([]byte("10.96.0.10:80/tcp")))
	r, err := diagnose.Run(t.Context(), cfg)
	require.NoError(t, err)
	require.Nil(t, r.Fault, "%v", r)
	require.Len(t, r.Endpoints, 2)
	require.NotEmpty(t, r.Notes)
}

// A masqueraded packet of the node may keep its source, which is the node's address already.
func TestKernelMasqueradedFromTheNode(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, nftables.Name)
	b, err := opens[nftables.Name](n.Node.NS.NetNS())
	require.NoError(t, err)
	defer b.Close()
	name := servicemodel.Name{Namespace: "default", Name: "far"}
	require.NoError(t, n.Pods[0].Serve(servicemodel.TCP, 8080))
	r, err := dataplane.New(b, nil).Apply(t.Context(), servicemodel.State{}.WithNode(
		servicemodel.Node{Addresses: n.NodeAddrs()}).WithService(&servicemodel.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.20")},
		Masquerade: servicemodel.MasqueradeAt(servicemodel.MasqueradeAlways),
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
	}).WithEndpoints(name, []servicemodel.Endpoint{{Addr: n.Pods[0].IPv4,
		Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}}}))
	require.NoError(t, err)
	cfg := &diagnose.Config{NetNS: n.Node.NS.NetNS(), Table: r.Changes.New, Here: n.NodeAddrs()}
	require.NoError(t, cfg.To.UnmarshalText([]byte("10.96.0.20:80/tcp")))
	report, err := diagnose.Run(t.Context(), cfg)
	require.NoError(t, err)
	require.Nil(t, report.Fault, "%v", report)
	require.Len(t, report.Endpoints, 1)
}

// The namespace of a process is found by its address, unless several namespaces have the address.
func TestFindNamespace(t *testing.T) {
	t.Parallel()
	const addr = "10.213.77.31"
	_, err := diagnose.FindNamespace(netip.MustParseAddr(addr))
	require.ErrorContains(t, err, "no network namespace")
	for i, want := range []string{"", "have the address " + addr} {
		ns := nstest.New(t)
		nstest.Run(t, ns, "ip addr add "+addr+"/32 dev lo")
		sleep := exec.Command("sleep", "60")
		require.NoError(t, ns.Do(sleep.Start))
		t.Cleanup(func() {
			require.NoError(t, sleep.Process.Kill())
			sleep.Wait() //nolint:errcheck // it was killed
		})

		found, err := diagnose.FindNamespace(netip.MustParseAddr(addr))
		if want != "" {
			require.ErrorContains(t, err, want)
			continue
		}

		require.NoError(t, err, i)
		require.NotEmpty(t, found)
	}
}

// A configuration that lacks something is an error.
func TestConfigsAreChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []*diagnose.Config{nil, {}, {Table: &servicemodel.Table{}}} {
		_, err := diagnose.Run(t.Context(), cfg)
		require.Error(t, err)
	}
}
