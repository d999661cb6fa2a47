package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

func TestRealServicesAreSpread(t *testing.T) {
	t.Parallel()
	w := &workload{services: 1000, endpoints: 10, pods: addrs("10.244.1.1", "10.244.1.2")}
	require.Len(t, w.reals(), realServices)
	require.Equal(t, 999, w.reals()[realServices-1], "the last service is one of them")
	require.Equal(t, []int{0, 1, 2}, (&workload{services: 3}).reals())
	c := w.all()
	require.Len(t, c.Services, 1000)
	require.Equal(t, "10.96.3.232", c.Services[999].Spec.ClusterIP)
	require.Len(t, c.Slices[999].Endpoints, 2, "its pods")
	require.Len(t, c.Slices[0].Endpoints, 10)
	seen := map[string]bool{}
	for _, s := range c.Slices {
		for _, e := range s.Endpoints {
			require.False(t, seen[e.Addresses[0]] && netip.MustParseAddr(e.Addresses[0]).
				As4()[0] == 11, "endpoints are not shared")
			seen[e.Addresses[0]] = true
		}
	}
}

func TestChangesOfTheWorkload(t *testing.T) {
	t.Parallel()
	w := &workload{services: 100, endpoints: 3}
	for round := range 50 {
		c := w.oneEndpoint(round)
		require.Len(t, c.Slices, 1)
		require.Empty(t, c.Services)
		require.NotEqual(t, w.oneEndpoint(round + 100).Slices[0].Endpoints[0].Addresses,
			c.Slices[0].Endpoints[0].Addresses)
	}
	require.Len(t, w.oneService(0).Services, 1)
	gone := w.oneService(1)
	require.Equal(t, w.oneService(0).Services[0].Name, gone.GoneServices[0].Name)
	require.Equal(t, w.oneService(0).Slices[0].Name, gone.GoneSlices[0].Name)
}

func TestKindsOfOutcomes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		outcomes
		want string
	}{
		{outcomes{"dropped": true}, "dropped"},
		{outcomes{"pod1 seeing the node": true, "pod3 seeing the node": true},
			"served here seeing the node"},
		{outcomes{"pod1 seeing the client": true, "remote1 seeing the client": true},
			"served elsewhere seeing the client or served here seeing the client"},
		{outcomes{"internet seeing the client": true}, "served by internet seeing the client"},
		{outcomes{"an endpoint seeing the node": true}, "served somewhere seeing the node"},
	} {
		require.Equal(t, tt.want, tt.kind())
	}
}

func TestReasonsCoverWhatTheyWereFoundFor(t *testing.T) {
	t.Parallel()
	const kind = "load-balancer IP from node: served by internet seeing the client, not refused"
	require.NotEmpty(t, reason("kube-proxy-iptables-legacy", kind,
		[]string{"policies Cluster, no endpoints, pods not told: x"}))
	require.Empty(t, reason("kube-proxy-iptables", kind,
		[]string{"policies Cluster, no endpoints, x",
			"policies Cluster, endpoints elsewhere only, x"}))
	require.Empty(t, reason("kernlb-iptables", kind, []string{"policies Cluster, no endpoints, x"}))
}

func TestScenariosAreComplete(t *testing.T) {
	t.Parallel()
	l := scenarios(&netnstest.Cluster{Node: &netnstest.Host{Name: "node"},
		OtherNode: &netnstest.Host{Name: "other"}})
	require.Len(t, l, 2*len(policies)*len(layouts))
	n := 0
	for _, s := range l {
		n += len(s.checks)
	}
	require.Equal(t, 9216, n)
}
