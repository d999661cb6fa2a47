package conntrack_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
)

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
