package main

import (
	"encoding/xml"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

func TestChangesOfTheWorkload(t *testing.T) {
	t.Parallel()
	w := newUniform(100, 3)
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

func TestTheMixIsWhatItIsSaidToBe(t *testing.T) {
	t.Parallel()
	m := newMix(1000)
	var kinds [4]int
	for _, size := range m.sizes[:m.services] {
		require.LessOrEqual(t, size, 1000)
		switch {
		case size <= 3:
			kinds[0]++
		case size <= 20:
			kinds[1]++
		case size <= 100:
			kinds[2]++
		default:
			kinds[3]++
		}
	}

	require.Equal(t, [4]int{600, 300, 90, 10}, kinds)
	c, sticky := m.all(), 0
	for _, s := range c.Services {
		if s.Spec.SessionAffinity == "ClientIP" {
			sticky++
		}
	}

	require.Equal(t, 100, sticky)
	require.Equal(t, m.sizes, newMix(1000).sizes, "it is the same each time")
	require.Len(t, m.oneEndpoint(3).Slices, 1)
	require.Len(t, newSizes(400).sizes, 800)
}

func TestChartsAreDrawn(t *testing.T) {
	t.Parallel()
	a := newAxis(87, 35_000, 0, 100)
	require.Equal(t, []float64{10, 100, 1000, 10_000, 100_000}, a.values)
	require.InDelta(t, 50, a.at(1000), 0.001)
	require.Equal(t, []float64{5, 10, 20}, newAxis(5.2, 12, 0, 1).values)
	f := &figureFile{Costs: []cost{
		{Peer: "kernlb-nftables", Services: 100, FullMs: 1, EndpointMs: 2},
		{Peer: "kernlb-nftables", Services: 1000, FullMs: 10, EndpointMs: 2}}}
	text := f.costChart().svg()
	require.NoError(t, xml.Unmarshal([]byte(text), new(struct{})))
	require.Contains(t, text, ">kernlb<")
	require.Contains(t, text, "stroke-dasharray")
	require.NoError(t, xml.Unmarshal([]byte(f.firstChart().svg()), new(struct{})), "no figures")
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
