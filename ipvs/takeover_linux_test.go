package ipvs

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/wait"
)

// theirs creates two virtual servers of kube-proxy. wanted is at the cluster IP of a rig's service,
// with an endpoint that stays and an endpoint that is removed. No service uses other.
func theirs(t *testing.T, r *rig) (wanted, other ipvsnl.ServiceKey) {
	t.Helper()
	wanted = ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("10.96.0.10:80"))
	other = ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("10.96.0.99:80"))
	for _, k := range []ipvsnl.ServiceKey{wanted, other} {
		r.addForeign(k)
		for _, addr := range []string{"10.244.1.1", "10.244.9.9"} {
			r.submit(ipvsnl.NewDestination(k, ipvsnl.Destination{Weight: 1,
				DestinationKey: ipvsnl.DestinationKey{Addr: netip.MustParseAddr(addr),
					Port: 8080}}))
		}
	}

	return wanted, other
}

// The service takes over a foreign virtual server in place: it is edited, endpoints that stay are
// not touched, and removed endpoints drain. A foreign virtual server that no service uses is left
// alone.
func TestAVirtualServerIsTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wanted, other := theirs(t, r)
	s := rigState([]string{"10.244.1.1", "10.244.2.2"})
	_, err := dataplane.New(r.backend(), &dataplane.Config{Strict: true}).Apply(t.Context(), s)
	require.ErrorIs(t, err, backends.ErrCollision, "it is not configured")
	r.fake.ResetLog()

	e := dataplane.New(r.backend(Config{TakeOver: true}), &dataplane.Config{Strict: true})
	applied(t, e, s)
	var log []string
	for _, line := range r.fake.Log() {
		if strings.Contains(line, wanted.String()) {
			log = append(log, line)
		}
		require.NotContains(t, line, other.String())
	}

	require.Equal(t, []string{
		"set service TCP 10.96.0.10:80: wrr",
		"new destination 10.244.2.2:8080 of TCP 10.96.0.10:80: weight 1 masquerade",
		"set destination 10.244.9.9:8080 of TCP 10.96.0.10:80: weight 0 masquerade",
		"delete destination 10.244.9.9:8080 of TCP 10.96.0.10:80", // it has no connections
	}, log)

	// From here on it belongs to the instance, even without the configuration.
	r.apply(e, rigState([]string{"10.244.2.2"}))
	cleanUp(t, e)
	require.Equal(t, []ipvsnl.ServiceKey{other}, r.fake.Keys())
}

// Virtual servers of another instance of kernlb are never taken over.
func TestAnotherInstanceIsNotTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1"})
	applied(t, r.engine(Config{Table: "other"}), s)
	_, err := dataplane.New(r.backend(Config{TakeOver: true}), &dataplane.Config{Strict: true}).
		Apply(t.Context(), s)
	require.ErrorIs(t, err, backends.ErrCollision)
}

// Another program's table with the name of the instance stays as it is.
func TestTablesOfOthersStay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run("nft add table ip firewall")
	r.run("nft add chain ip firewall INPUT { type filter hook input priority 0 ; policy drop ; }")
	before := r.state()
	e := r.engine(Config{Table: "firewall"})
	_, err := e.Apply(t.Context(), rigState([]string{"10.244.1.1"}))
	require.ErrorIs(t, err, backends.ErrCollision)
	require.ErrorContains(t, err, "table ip firewall")
	cleanUp(t, e)
	require.Equal(t, before, r.state())
}

// After any damage, a cleanup leaves nothing.
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

// If no other program changes the kernel, the generation is enough to know that nothing changed.
func TestAQuietKernelIsNotLookedAt(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	e := dataplane.New(b, nil)
	for _, pods := range [][]string{{"10.244.1.1"}, {"10.244.1.2"}, {"10.244.1.1", "10.244.2.2"}} {
		applied(t, e, rigState(pods))
		b.looks = wait.Budget{}
		requireIntegrity(t, b, backends.Intact)
		require.Equal(t, wait.Budget{}, b.looks)
	}

	r.run("nft add table inet other")
	b.looks = wait.NewBudget(8, 20)
	requireIntegrity(t, b, backends.Intact)
	require.NotEqual(t, wait.NewBudget(8, 20), b.looks, "it was looked at")
	gen := ok(b.kernel.nf.GenID(t.Context()))(t)
	require.Equal(t, gen.ID, b.kernel.gen)

	// If no check is due, a later one finds an edit by hand.
	r.run("nft flush chain ip kernlb-ipvs admit")
	b.looks = wait.Budget{}
	requireIntegrity(t, b, backends.Intact)
	b.looks = wait.NewBudget(8, 20)
	requireIntegrity(t, b, backends.Broken)
}

// A deleted rule or route of ours is a reason for another apply. Rules and routes of other programs
// are not.
func TestWatchFollowsTheRuleAndTheRoute(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
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
		case <-time.After(time.Minute):
			require.Fail(t, "not noticed", what)
		}
	}

	require.Eventually(t, func() bool { // until Watch has begun
		r.run("ip address add 198.51.100.77/32 dev lo")
		r.run("ip address del 198.51.100.77/32 dev lo")
		return len(changes) > 1
	}, time.Minute, time.Millisecond)

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

// The next apply notices edits by hand, and repairs them.
func TestDamageIsNoticedAndRepaired(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1", "10.244.2.2"}, restrictedTo("198.51.100.0/24"))
	e := r.engine()
	r.apply(e, s)
	want := r.state()
	for _, damage := range []string{
		"nft delete element ip kernlb-ipvs hairpins { 10.244.1.1 . 10.244.1.1 }",
		"nft delete element ip kernlb-ipvs cluster-ips { 10.96.0.10 }",
		"nft delete element ip kernlb-ipvs service-restricted { 203.0.113.20 . tcp . 80 }",
		"nft add element ip kernlb-ipvs service-drop { 203.0.113.20 . tcp . 80 }",
		"nft flush set ip kernlb-ipvs services",
		"nft flush set ip kernlb-ipvs sources",
		"nft flush set ip kernlb-ipvs version",
		"nft flush set ip6 kernlb-ipvs settings",
		"nft flush table ip kernlb-ipvs",
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
		require.Positive(t, res.Stats.Messages, damage)
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

// version is the present version, as nft prints it.
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
