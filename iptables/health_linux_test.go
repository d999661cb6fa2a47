package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// If INPUT drops packets, load balancers still reach the health check node ports, and nothing else.
// The rules are repaired and adopted like all others, and go with the last health check.
func TestHealthChecksPassWhereInputDrops(t *testing.T) {
	t.Parallel()
	c, b := clusterOf(t)
	for _, port := range []uint16{32555, 32556} {
		require.NoError(t, c.Node.Serve(sm.TCP, port))
	}
	for _, f := range nft.Families {
		runTool(t, c.Node.NS, "", toolName(f.Model), "-P", "INPUT", "DROP")
	}
	runTool(t, c.Node.NS, "", "ip6tables", "-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT")
	requireDial := func(want netnstest.OutcomeKind, to ...string) {
		t.Helper()
		for _, a := range to {
			require.Equal(t, want, dial(t, c.Outside[0], a).Kind, a)
		}
	}
	checks := []string{"192.0.2.10:32555", "[2001:db8:2::10]:32555"}
	requireDial(netnstest.Dropped, checks...)

	with := podService(c, 3, func(svc *sm.Service, _ *sm.Node) {
		svc.LoadBalancerIPs = []sm.LoadBalancerIP{{Addr: addrs("203.0.113.8")[0]}}
		svc.ExternalTrafficPolicy, svc.HealthCheckNodePort = sm.PolicyLocal, 32555
	})
	again := another(t, c.Node.NS)
	// This backend observes before there are health checks, and must not take later ones for
	// unwanted.
	ok(again.Observe(t.Context(), nil))(t)
	e := dataplane.New(b, nil)
	applied(t, e, with)
	requireDial(netnstest.Answered, checks...)
	requireDial(netnstest.Dropped, "192.0.2.10:32556")

	runTool(t, c.Node.NS, "", "iptables", "-F", "KUBE-HEALTH-CHECKS")
	r := applied(t, e, with)
	require.Equal(t, []string{"chain KUBE-HEALTH-CHECKS of table ip filter lacks 1 and has 0 " +
		"surplus rules; missing: -p tcp -m tcp --dport 32555 -m comment --comment " +
		`"default/web health check node port" -j ACCEPT`}, r.Drift)
	requireDial(netnstest.Answered, checks...)

	adopts := dataplane.New(again, nil)
	r = applied(t, adopts, with)
	require.Empty(t, r.Drift)
	require.Zero(t, r.Messages, r.Changes)
	for svc := range with.Services() {
		other := *svc
		other.HealthCheckNodePort = 32556
		applied(t, adopts, with.WithService(&other))
	}
	requireDial(netnstest.Dropped, checks...)
	requireDial(netnstest.Answered, "192.0.2.10:32556")
	applied(t, adopts, podService(c, 3, nil))
	for _, f := range nft.Families {
		require.NotContains(t, save(t, c.Node.NS, f), "HEALTH-CHECKS")
	}
}
