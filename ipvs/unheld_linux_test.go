package ipvs

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestEveryFieldOnTheFake(t *testing.T) {
	t.Parallel()
	if os.Getenv("KERNLB_VM") != "" {
		t.Skip("TestEveryField does this on the kernel's IPVS")
	}
	dataplanetest.EveryField(t, dataplanetest.Backend{}, dataplanetest.FieldsOptions{
		OneValue: true, Ranges: true, MasqueradeIPs: true,
		// not by name of the namespace: a later namespace can have the name of an earlier one
		New: func() func(ns netns.Namespace) (backends.Backend, error) {
			fake := ipvsfake.New()
			return func(ns netns.Namespace) (backends.Backend, error) {
				return openOn(fake, Config{NetNS: ns}, rawnl.Config{})
			}
		}})
}

// unheldState has a node port in both families. Its clients outside have the endpoints of this
// node. No other frontend has that pool.
func unheldState(endpoints ...string) sm.State {
	s := rigState(nil, func(s *sm.Service) {
		s.ExternalIPs, s.ExternalTrafficPolicy = nil, sm.PolicyLocal
	})
	eps := goldenEndpoints(endpoints...)
	for i := range eps {
		eps[i].Node = "this"
	}
	return s.WithEndpoints(goldenService().Name, eps)
}

// A node port in a family without an address has no virtual server that could show its endpoints.
// This is not a difference in the kernel.
func TestNodePortsWithoutAnAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.engine()
	first, second := unheldState("10.244.1.1", "fd00:10:244::1"),
		unheldState("10.244.1.1", "fd00:10:244::2")
	r.apply(e, first)
	o := ok(r.backend().Observe(t.Context(), nil))(t)
	require.Empty(t, o.Drift)
	require.True(t, e.Status().Held.Len() == o.Table.Len(), "each frontend is read back")
	missing := sm.Diff(o.Table, e.Status().Held)
	require.Len(t, missing.Pools, 2, missing.String()) // the pools for clients outside
	held := e.Status().Held
	require.True(t, sm.Diff(held.AssumedIn(o.Table), held).Empty())
	p := ok(r.engine().Plan(t.Context(), first))(t)
	require.Empty(t, p.Changes.String())

	// Commits of other programs are not damage.
	for range 2 {
		r.run("nft add table ip stranger")
		e.Resync()
		res := applied(t, e, first)
		require.True(t, res.Observed && !res.IsRepair() && res.Stats.Messages == 0, res.String())
	}

	require.Zero(t, e.Status().Totals.Repairs)

	// One process plans a change and another process makes it, whatever either knows.
	knows := func(s sm.State) *dataplane.Engine {
		e := r.engine()
		r.apply(e, s)
		return e
	}

	for _, engines := range [][2]*dataplane.Engine{{r.engine(), r.engine()}, {e, r.engine()},
		{r.engine(), knows(first)}, {e, e}} {
		p = ok(engines[0].Plan(t.Context(), second))(t)
		text := ok(json.Marshal(p.Changes))(t)
		var c sm.ChangeSet
		require.NoError(t, json.Unmarshal(text, &c))
		ok(engines[1].ApplyChanges(t.Context(), &c))(t)
		r.apply(e, second)
		r.apply(e, first)
	}

	r.apply(e, second)

	// A new address gets a virtual server.
	r.run("ip link add there type bridge")
	r.run("ip link set there up")
	r.run("ip address add 2001:db8::9/64 dev there nodad")
	r.run("ip address add 192.0.2.9/24 dev there")
	r.apply(e, second)
	servers := strings.Join(r.servers(), "\n")
	require.Contains(t, servers, "[2001:db8::9]:30080 -> [fd00:10:244::2]:8080")
	require.Contains(t, servers, "192.0.2.9:30080 -> 10.244.1.1:8080")

	// Without the address, the virtual server is removed.
	r.run("ip address del 2001:db8::9/64 dev there")
	r.apply(e, first)
	require.NotContains(t, strings.Join(r.servers(), "\n"), "[2001:db8::9]")
}

// A node port whose port other frontends have at all addresses has no virtual server, either.
func TestNodePortsThatAreTakenEverywhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run("ip link add there type bridge")
	r.run("ip link set there up")
	r.run("ip address add 192.0.2.9/24 dev there")
	s := unheldState("10.244.1.1")
	taker := goldenService(func(s *sm.Service) {
		s.Name.Name, s.ClusterIPs, s.Ports[0].NodePort = "taker", nil, 0
		s.Ports[0].Port = 30080
		s.ExternalIPs = append(s.ExternalIPs, netip.MustParseAddr("192.0.2.9"))
	})
	s = s.WithService(taker).WithEndpoints(taker.Name, goldenEndpoints("10.244.2.1"))
	r.apply(r.engine(), s)
	p := ok(r.engine().Plan(t.Context(), s))(t)
	require.Empty(t, p.Changes.String())
	require.Empty(t, p.Drift)
}
