package nftables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/servicemodel"
)

// renewing is an instance with remembered clients and with rules of the user. Some of these rules
// have anonymous sets or an anonymous chain, and one has counted packets.
type renewing struct {
	t  *testing.T
	ns *netnstest.NS
	*backend
	engine *dataplane.Engine
	state  servicemodel.State
}

var renewingConfig = Config{BeforeDispatch: "user-first", BeforeMasquerade: "user-last"}

func newRenewing(t *testing.T, kind string, capacity func(int) uint32) *renewing {
	t.Helper()
	r := &renewing{t: t, ns: nstest.New(t), state: affinityStateOf(kind, 10, -1)}
	r.open()
	r.pl.Capacity = capacity
	ok(r.engine.Apply(t.Context(), r.state))(t)
	for _, rule := range []string{"user-first ip saddr 10.1.2.3 tcp dport { 80, 443 } accept",
		"user-first ip daddr 10.1.2.5 counter packets 5 bytes 500",
		"user-first ip daddr 10.1.2.6 jump { tcp dport 80 counter; accept; }",
		"user-last ip saddr 10.1.2.4 tcp dport vmap { 80 : accept, 443 : return }"} {
		r.nft("add rule ip kernlb " + rule)
	}

	rememberClients(t, r.backend, 1000, 10)
	return r
}

func (r *renewing) nft(script string) {
	r.t.Helper()
	runNft(r.t, r.ns, nftPrograms(r.t)[0], script, "-f", "-")
}

// open opens the instance again, as after a restart.
func (r *renewing) open() {
	r.backend = newBackend(r.t, r.ns, &renewingConfig)
	r.engine = dataplane.New(r.backend, nil)
}

// apply applies the state, and requires that the user's rules and the clients still exist.
func (r *renewing) apply() *dataplane.Result {
	r.t.Helper()
	res := ok(r.engine.Apply(r.t.Context(), r.state))(r.t)
	require.Empty(r.t, res.Refused)
	require.False(r.t, r.pl.Refused)
	l := listing(r.t, r.ns, "nft")
	for _, rule := range []string{"ip saddr 10.1.2.3 tcp dport { 80, 443 } accept",
		"ip daddr 10.1.2.5 counter packets 5 bytes 500", "ip daddr 10.1.2.6 jump {",
		"ip saddr 10.1.2.4 tcp dport vmap"} {
		require.Equal(r.t, 1, strings.Count(l, rule), rule)
	}

	n := 0
	for _, m := range form.AffinityMapsOf(nft.IPv4, &r.pl.Tables[0].Shape) {
		count := ok(r.kernel.reader.About(nft.IPv4, defaultTable).Count(r.t.Context(), m.Name))(r.t)
		n += max(0, count)
	}

	require.Equal(r.t, 1000, n)
	o := ok(newBackend(r.t, r.ns, &renewingConfig).Observe(r.t.Context(), nil))(r.t)
	require.Empty(r.t, o.Drift)
	return res
}

// If the sets and chains of a table are damaged in any way, or belong to another layout, the user's
// rules and remembered clients stay.
func TestTheUsersRulesOutliveRenewals(t *testing.T) {
	t.Parallel()
	damage := map[string]string{
		"another layout": `delete element ip kernlb settings { 0x00000001 }
			add element ip kernlb settings { 0x00000001 comment "layout 1000" }`,
		"another layout's objects": `add set ip kernlb new { type ipv4_addr; }
			add chain ip kernlb new
			add rule ip kernlb new ip daddr @new counter
			insert rule ip kernlb services jump new`,
		"dormant":         "add table ip kernlb { flags dormant; }",
		"a foreign set":   "add set ip kernlb mine { type ipv4_addr; }",
		"a foreign chain": "add chain ip kernlb mine",
		"a set is missing": `flush chain ip kernlb no-endpoints
			delete set ip kernlb service-drop`,
		"a set of another type": `flush chain ip kernlb no-endpoints
			delete set ip kernlb service-drop
			add set ip kernlb service-drop { type ipv4_addr; }`,
		"a chain is missing": `flush chain ip kernlb filter-forward
			delete chain ip kernlb filter-forward`,
		"a chain at another hook": `flush chain ip kernlb filter-forward
			delete chain ip kernlb filter-forward
			add chain ip kernlb filter-forward { type filter hook output priority 5; }`,
		"no version":          "delete set ip kernlb VERSION",
		"an empty version":    "flush set ip kernlb VERSION",
		"dormant and damaged": "add chain ip kernlb mine\nadd table ip kernlb { flags dormant; }",
	}
	for name, command := range damage {
		for kind := range affinityKinds {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				r := newRenewing(t, kind, plan.Capacity)
				r.nft("add rule ip kernlb user-first ip daddr @cluster-ips counter")
				r.nft(strings.ReplaceAll(command, "VERSION", form.VersionName(r.pl.Version.Epoch)))
				r.open()
				r.apply()
			})
		}
	}
}

// If the kernel does not wake a dormant table, the commit fails, and the next commit wakes the
// table.
func TestTheErrorOfAWakingIsReturned(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	e := dataplane.New(b, nil)
	ok(e.Apply(t.Context(), editedState()))(t)
	nstest.Run(t, ns, "nft add table ip kernlb { flags dormant; }")
	o := ok(b.Observe(t.Context(), nil))(t)
	require.Equal(t, []string{"table ip: it is dormant"}, o.Drift)
	s := &sending{before: func(n int) error {
		if n == 1 {
			return unix.ENOMEM
		}
		return nil
	}}
	dial(t, b, &rawnl.Config{NetNS: ns.NetNS(), Wrap: func(inner rawnl.Socket) rawnl.Socket {
		s.Socket = inner
		return s
	}})

	c := servicemodel.Diff(o.Table, mustResolve(t, editedState()).Arrange(o.Table))
	_, err := b.Commit(t.Context(), c)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.Equal(t, 1, s.n)
	require.NotEmpty(t, ok(e.Apply(t.Context(), editedState()))(t).Drift)
	require.Empty(t, ok(b.Observe(t.Context(), nil))(t).Drift)
}

// All sets are full from the beginning, so every set that grows must be replaced. The user's rules
// and remembered clients stay.
func TestTheUsersRulesOutliveFullSets(t *testing.T) {
	t.Parallel()
	r := newRenewing(t, "clients", func(n int) uint32 { return uint32(n) })
	sizes := func() map[string]uint32 {
		return ok(r.kernel.reader.Table(t.Context(), nft.IPv4, defaultTable))(t).Sizes
	}
	replaced := map[string]bool{}
	for i := range byte(8) {
		svc := goldenService(func(s *servicemodel.Service) {
			s.Name.Name = fmt.Sprint("more-", i)
			s.Ports[0].NodePort = 30100 + uint16(i)
			s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, i})}
			s.Scheduler = []servicemodel.Scheduler{"", "", "", "rr"}[i%4]
		})
		var eps []servicemodel.Endpoint
		if i%4 != 2 {
			eps = goldenEndpoints(fmt.Sprintf("10.245.%d.1", i), fmt.Sprintf("10.245.%d.2", i),
				fmt.Sprintf("10.245.%d.3", i))
		}

		r.state = r.state.WithNode(goldenNode()).WithService(svc).WithEndpoints(svc.Name, eps)
		before := sizes()
		r.apply()
		for name, size := range sizes() {
			if had := before[name]; had > 0 && size != had {
				replaced[name] = true
			}
		}
	}

	t.Log("replaced:", slices.Sorted(maps.Keys(replaced)))
	for _, set := range []string{form.KindService.Registry,
		form.KindService.SlotMap(false, form.AtRandom),
		form.KindNodePort.SlotMap(false, form.InTurn), form.KindNodePort.Prefix +
			form.SetScheduled, form.SetClusterIPs,
		form.SetHairpins} {
		require.Contains(t, replaced, set)
	}
}
