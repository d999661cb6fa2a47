package conntrack_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
	"github.com/kernlb/kernlb/servicemodel"
)

// A UDP client with a fixed source port keeps sending while its service changes. Without a cleaning
// its flow would not change. After a cleaning, every packet reaches the right endpoint.
func TestCleanBringsUDPClientsToTheRightEndpoint(t *testing.T) {
	t.Parallel()
	for _, tc := range []udpCase{
		{name: "its endpoint is replaced", service: "10.96.0.10:53", before: 1, after: 2,
			misdirected: 1},
		{name: "its endpoint is replaced, over IPv6", service: "[fd00:10:96::10]:53", before: 1,
			after: 2, misdirected: 1},
		{name: "its endpoint is replaced, masqueraded", service: "10.96.0.10:53", masq: true,
			before: 1, after: 2, misdirected: 1},
		{name: "its service gets its first endpoint", service: "10.96.0.10:53", before: -1,
			after: 2, untranslated: 1},
		{name: "its node port moves", service: "192.0.2.11:30053", outside: true, masq: true,
			before: 1, after: 2, misdirected: 1},
		{name: "its external IP gets its first endpoint, over IPv6",
			service: "[2001:db8:113::5]:53", outside: true, before: -1, after: 1,
			untranslated: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.run(t)
		})
	}
}

// udpCase is one change of a service whose client keeps sending.
type udpCase struct {
	name         string
	service      string
	outside      bool
	masq         bool
	before       int // the pod that serves; -1: none
	after        int
	misdirected  int
	untranslated int
}

func (tc udpCase) run(t *testing.T) {
	cluster := netnstest.Start(t, netnstest.Options{RemotePods: -1})
	service, mark := AddrPort(tc.service), ""
	if tc.masq {
		mark = "meta mark set 0x4000"
	}
	endpoint := func(pod int) netip.AddrPort {
		return netip.AddrPortFrom(cluster.Pods[pod].Addr(service.Addr()), 5353)
	}
	rule := func(pod int) string {
		if pod < 0 {
			return ""
		}
		return DNAT(UDP, service, endpoint(pod), mark)
	}
	for _, pod := range cluster.Pods[1:] {
		require.NoError(t, pod.Serve(servicemodel.UDP, 5353))
	}
	probe := netnstest.Probe{From: cluster.Pods[0], Proto: servicemodel.UDP, To: service,
		SourcePort: 4000, Timeout: 3 * time.Second}
	if tc.outside {
		probe.From = cluster.Outside[0]
	}
	who := func() string { return probe.Send(context.Background()).String() }
	table := OpenTable(t, cluster.Node.NS)

	Rules(t, cluster.Node.NS, rule(tc.before), "")
	want := netnstest.Net.Internet
	if tc.before >= 0 {
		want = cluster.Pods[tc.before].Name
	}
	require.Contains(t, who(), want)
	Rules(t, cluster.Node.NS, rule(tc.after), "")
	require.Contains(t, who(), want, "the kernel remembers")

	frontend := KeyOf(service, UDP)
	if tc.outside && cluster.IsNodeAddr(service.Addr()) {
		frontend.Addr = AnyAddr(service.Addr())
	}
	m := matcherOf(t, Change{NodeAddrs: cluster.NodeAddrs(), Frontends: []Frontend{{
		Key: frontend, Endpoints: []netip.AddrPort{endpoint(tc.after)}, Untranslated: true,
	}}})
	got := cleaned(t, table, m, CleanOptions{})
	require.Equal(t, tc.misdirected, got.Misdirected)
	require.Equal(t, tc.untranslated, got.Untranslated)
	require.Equal(t, 1, got.Deleted)
	require.Contains(t, who(), cluster.Pods[tc.after].Name)

	got = cleaned(t, table, m, CleanOptions{})
	require.Zero(t, got.Misdirected+got.Untranslated, "what is right stays")
}

// A service that loses its last endpoint does not leave a blackhole (kubernetes #139628): its
// clients are refused.
func TestCleanAfterTheLastEndpoint(t *testing.T) {
	t.Parallel()
	cluster := netnstest.Start(t, netnstest.Options{RemotePods: -1, OutsideClients: -1})
	service := AddrPort("10.96.0.10:53")
	endpoint := netip.AddrPortFrom(cluster.Pods[1].IPv4, 5353)
	server := OK(cluster.Pods[1].NS.Serve("pod2", servicemodel.UDP, endpoint))(t)
	probe := netnstest.Probe{From: cluster.Pods[0], Proto: servicemodel.UDP, To: service,
		SourcePort: 4000}
	reject := "ip daddr 10.96.0.10 reject"
	table := OpenTable(t, cluster.Node.NS)

	Rules(t, cluster.Node.NS, DNAT(UDP, service, endpoint, ""), "")
	require.Equal(t, netnstest.Answered, probe.Send(context.Background()).Kind)
	require.NoError(t, server.Close())
	Rules(t, cluster.Node.NS, "", reject)
	m := matcherOf(t,
		Change{Frontends: []Frontend{{Key: KeyOf(service, UDP)}}})
	hits := server.Hits()
	got := cleaned(t, table, m, CleanOptions{})
	require.Equal(t, 1, got.Deleted)
	require.Equal(t, netnstest.Refused, probe.Send(context.Background()).Kind)
	require.Equal(t, hits, server.Hits())
}

func TestCleanCutsTCP(t *testing.T) {
	t.Parallel()
	for _, keepOpen := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep open %t", keepOpen), func(t *testing.T) {
			t.Parallel()
			cluster := netnstest.Start(t, netnstest.Options{RemotePods: -1, OutsideClients: -1})
			service := AddrPort("10.96.0.10:80")
			at := netip.AddrPortFrom(cluster.Pods[1].IPv4, 8080)
			listener := listen(t, cluster.Pods[1], at)
			table := OpenTable(t, cluster.Node.NS)
			Rules(t, cluster.Node.NS, DNAT(TCP, service, at, ""), "")
			conn := connect(t, cluster.Pods[0].NS, netip.AddrPort{}, service, listener)
			m := matcherOf(t, Change{Frontends: []Frontend{
				{Key: KeyOf(service, TCP)},
			}})
			got := cleaned(t, table, m, CleanOptions{KeepOpen: keepOpen})
			require.Equal(t, 1, got.Misdirected)
			require.Equal(t, 1, got.Deleted)
			if keepOpen {
				require.Zero(t, got.Reset)
				return
			}
			require.Equal(t, 1, got.Reset)
			require.ErrorIs(t, waitReset(conn.client), syscall.ECONNRESET)
			require.ErrorIs(t, waitReset(conn.server), syscall.ECONNRESET)
			got = cleaned(t, table, m, CleanOptions{})
			require.Zero(t, got.Deleted, "tombstones are left alone")
			require.Len(t, List(t, table, Filter{OriginalDst: service.Addr()}), 1)
		})
	}
}

func TestNothingIsDumpedWhenNothingCanBeStale(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	Create(t, table, NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", ""))
	m := matcherOf(t, Change{})
	got := cleaned(t, table, m, CleanOptions{})
	got.Duration = 0
	require.Equal(t, CleanResult{}, got)
}

// Clean deletes exactly the stale flows of a large table, whatever scan it uses.
func TestCleanAgreesWithTheDefinition(t *testing.T) {
	t.Parallel()
	for _, scan := range []Scan{ScanAuto, ScanNarrow, ScanProtocol, ScanAll} {
		t.Run(fmt.Sprintf("scan %d", scan), func(t *testing.T) {
			t.Parallel()
			testCleanAgreesWithTheDefinition(t, CleanOptions{KeepOpen: true}.With(scan))
		})
	}
}

func testCleanAgreesWithTheDefinition(t *testing.T, opts CleanOptions) {
	table, _ := NewTable(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 20))
	Create(t, table, RandomFlows(r, 2000)...)
	before := List(t, table, Filter{})
	for range 10 {
		c := RandomChange(r)
		var want []Flow
		stale := 0
		for _, f := range before {
			if Classify(c, &f).Stale() {
				stale++
			} else {
				want = append(want, f)
			}
		}
		m := matcherOf(t, c)
		got := cleaned(t, table, m, opts)
		require.Equal(t, stale, got.Deleted, "seed %d: %+v", seed, c)
		before = List(t, table, Filter{})
		require.Equal(t, Keys(want), Keys(before), "seed %d: %+v", seed, c)
	}
}

func cleaned(tb testing.TB, table *Table, m *Matcher, o CleanOptions) CleanResult {
	tb.Helper()
	r := OK(table.Clean(context.Background(), m, o))(tb)
	return r
}

func cutAll(tb testing.TB, table *Table, flows []Flow) CleanResult {
	tb.Helper()
	return OK(table.Cut(context.Background(), flows))(tb)
}
