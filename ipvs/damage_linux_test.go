package ipvs

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/ration"
)

// What somebody changes by hand is noticed by the next apply, and put right.
func TestDamageIsNoticedAndRepaired(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1", "10.244.2.2"}, restrictedTo("198.51.100.0/24"))
	e := r.engine()
	r.apply(e, s)
	want := r.state()
	for _, damage := range []string{
		"nft delete element ip kernlb-ipvs hairpins { 10.244.1.1 . 10.244.1.1 }",
		"nft delete element ip kernlb-ipvs service-restricted { 203.0.113.20 . tcp . 80 }",
		"nft add element ip kernlb-ipvs service-drop { 203.0.113.20 . tcp . 80 }",
		"nft flush set ip kernlb-ipvs services",
		"nft flush set ip kernlb-ipvs sources",
		"nft flush set ip kernlb-ipvs version",
		"nft flush set ip6 kernlb-ipvs settings",
		"nft flush chain ip kernlb-ipvs service",
		"nft flush chain ip6 kernlb-ipvs prerouting",
		"nft insert rule ip kernlb-ipvs admit accept",
		"nft add chain ip kernlb-ipvs prerouting { policy drop ; }",
		"nft add table ip kernlb-ipvs { flags dormant ; }",
		"nft add chain ip kernlb-ipvs mine",
		"nft add set ip kernlb-ipvs mine { type mark ; }",
		"nft delete table ip kernlb-ipvs",
		"nft delete table ip6 kernlb-ipvs",
		"nft flush ruleset",
		"ip rule del priority 107", "ip -6 rule del priority 107",
		"ip route flush table 1795224733", "ip -6 route flush table 1795224733",
	} {
		version := r.version()
		r.run(damage)
		require.NotEqual(t, append(want, version), append(r.state(), r.version()), damage)
		res, err := e.Apply(t.Context(), s)
		require.NoError(t, err, damage)
		require.True(t, res.Observed, damage)
		require.Positive(t, res.Messages, damage)
		require.Equal(t, want, r.state(), damage)
		require.Len(t, strings.Fields(r.version()), 1, damage)
	}
	for name := range rigSysctls {
		r.setSysctl(name, "0")
		require.NotEmpty(t, r.apply(e, s).Drift, name)
		require.Equal(t, "1", r.sysctl(name))
	}
	require.Equal(t, want, r.state())
}

// version is the version that the kernel has, as nft prints it.
func (r *rig) version() string {
	r.t.Helper()
	var list string
	for _, l := range r.state() {
		if strings.HasPrefix(l, "table ip kernlb-ipvs") {
			list = r.run("nft list set ip kernlb-ipvs version")
		}
	}
	_, elems, _ := strings.Cut(list, "elements = {")
	elems, _, _ = strings.Cut(elems, "}")
	return elems
}

// Whatever somebody has damaged, a cleanup leaves nothing.
func TestDamagedInstancesAreCleanedUp(t *testing.T) {
	t.Parallel()
	for _, damage := range []string{
		"nft flush set ip kernlb-ipvs version", "nft flush set ip kernlb-ipvs services",
		"nft delete table ip6 kernlb-ipvs", "nft delete table ip kernlb-ipvs", "nft flush ruleset",
		"ip rule del priority 107", "ip route flush table 1795224733",
	} {
		r := newRig(t)
		nothing := r.state()
		e := r.engine()
		r.apply(e, rigState([]string{"10.244.1.1"}, restrictedTo("198.51.100.0/24")))
		r.run(damage)
		_, err := e.Cleanup(t.Context())
		require.NoError(t, err, damage)
		require.Equal(t, nothing, r.state(), damage)
		stats, err := e.Cleanup(t.Context())
		require.NoError(t, err, damage)
		require.Zero(t, stats.Messages)
	}
}

// On a kernel that nobody else changes, the generation is enough to know that nothing was changed.
func TestAQuietKernelIsNotLookedAt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	e := dataplane.New(b, nil)
	for _, pods := range [][]string{{"10.244.1.1"}, {"10.244.1.2"}, {"10.244.1.1", "10.244.2.2"}} {
		_, err := e.Apply(t.Context(), rigState(pods))
		require.NoError(t, err)
		b.looks = ration.Ration{}
		i, err := b.Integrity(t.Context())
		require.NoError(t, err)
		require.Equal(t, dataplane.Intact, i)
		require.Equal(t, ration.Ration{}, b.looks)
	}
	r.run("nft add table inet other")
	b.looks = ration.New(8, 20)
	i, err := b.Integrity(t.Context())
	require.NoError(t, err)
	require.Equal(t, dataplane.Intact, i)
	require.NotEqual(t, ration.New(8, 20), b.looks, "it was looked at")
	gen, err := b.kernel.nf.GenID(t.Context())
	require.NoError(t, err)
	require.Equal(t, gen.ID, b.kernel.gen)

	// When no look is due, an edit by hand is found by a later one.
	r.run("nft flush chain ip kernlb-ipvs admit")
	b.looks = ration.Ration{}
	i, err = b.Integrity(t.Context())
	require.NoError(t, err)
	require.Equal(t, dataplane.Intact, i)
	b.looks = ration.New(8, 20)
	i, err = b.Integrity(t.Context())
	require.NoError(t, err)
	require.Equal(t, dataplane.Broken, i)
}

// A destination that somebody has deleted is found by the next full reading.
func TestDeletedDestinationsAreFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1", "10.244.2.2"})
	e := r.engine()
	r.apply(e, s)
	want := r.state()
	c, err := r.fake.Dial(t.Context(), nil)
	require.NoError(t, err)
	defer c.Close()
	for i, k := range r.fake.Keys() {
		var batch ipvsnl.Batch
		dests, err := c.Destinations(t.Context(), k)
		require.NoError(t, err)
		for _, d := range dests[:[]int{0, 1, len(dests)}[i%3]] { // none, one or all
			batch.DelDestination(k, d.DestinationKey)
		}
		if i%3 == 0 {
			batch.DelService(k)
		}
		require.NoError(t, c.Submit(t.Context(), &batch))
	}
	e.Resync()
	require.NotEmpty(t, r.apply(e, s).Drift)
	require.Equal(t, want, r.state())
}

// A rule or a route that goes is a change that is worth another apply; those of others are not.
func TestWatchFollowsTheRuleAndTheRoute(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	e := dataplane.New(b, nil)
	s := rigState([]string{"10.244.1.1"})
	r.apply(e, s)
	want := r.state()
	changes, ended := make(chan struct{}, 100), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- b.Watch(ctx, func() { changes <- struct{}{} }) }()
	next := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(5 * time.Second):
			require.Fail(t, "not noticed", what)
		}
	}
	require.Eventually(t, func() bool { // until it watches
		r.run("ip address add 198.51.100.77/32 dev lo")
		r.run("ip address del 198.51.100.77/32 dev lo")
		return len(changes) > 1
	}, 5*time.Second, time.Millisecond)
	for {
		select {
		case <-changes:
			continue
		case <-time.After(50 * time.Millisecond):
		}
		break
	}
	r.run("ip rule add priority 300 table 300")
	r.run("ip rule del priority 300")
	for _, damage := range []string{"ip rule del priority 107",
		"ip -6 route flush table 1795224733"} {
		r.run(damage)
		next(damage)
		require.Empty(t, changes, damage)
		require.NotEmpty(t, r.apply(e, s).Drift)
		require.Equal(t, want, r.state())
	}
	cancel()
	require.NoError(t, <-ended)
}
