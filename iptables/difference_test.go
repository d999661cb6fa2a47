package iptables

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

// A description counts the missing and the surplus rules, and shows the first one. A replaced rule
// is one of each.
func TestDifferencesAreDescribed(t *testing.T) {
	t.Parallel()
	one := clusterIPRule(netip.MustParseAddr("10.96.0.1"))
	two := clusterIPRule(netip.MustParseAddr("10.96.0.2"))
	three := clusterIPRule(netip.MustParseAddr("10.96.0.3"))
	for want, lists := range map[string][2][]rule{
		"lacks 1 and has 1 surplus rules; not: " + one.text(sm.IPv4): {{one}, {two}},
		"lacks 1 and has 0 surplus rules; missing: " + two.text(sm.IPv4): {{one, three},
			{one, two, three}},
		"lacks 0 and has 2 surplus rules; surplus: " + one.text(sm.IPv4): {{one, two}, {}},
	} {
		require.Equal(t, want, describeDifference(lists[0], lists[1], sm.IPv4))
	}
}

// A chain has drifted if it is missing, does not belong, or has other rules. Each chain is
// described in a line.
func TestDriftedChainsAreDescribed(t *testing.T) {
	t.Parallel()
	rules := []rule{clusterIPRule(netip.MustParseAddr("fd00::1"))}
	id := nat6.chain("KUBE-X")
	for want, x := range map[string]*chainChange{
		"is missing":      {exists: true, after: rules},
		"does not belong": {existed: true, before: rules},
		"lacks 0 and has 1 surplus rules; surplus: " + rules[0].text(sm.IPv6): {existed: true,
			shared: true, before: rules},
		"lacks 1 and has 0 surplus rules; missing: " + rules[0].text(sm.IPv6): {existed: true,
			exists: true, after: rules},
	} {
		x.id = id
		o := &observed{kernel: kernelState{drift: map[chainID]*chainChange{}}}
		o.drifted(x)
		require.Equal(t, []string{"chain KUBE-X of table ip6 nat " + want}, o.text)
		require.Same(t, x, o.kernel.drift[id])
	}
}
