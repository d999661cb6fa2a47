package conntrack_test

import (
	"context"
	"flag"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/tuning"
	. "github.com/kernlb/kernlb/internal/test/cttest"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// This test changes settings of the machine, if the machine belongs to it. Parallel tests wait
// until it has restored them.
func TestTuningOfTheMachine(t *testing.T) {
	if os.Getenv("KERNLB_VM") == "" {
		t.Skip("changes nf_conntrack_max of the machine: needs a VM made for tests (KERNLB_VM)")
	}
	machine := OK(Open(nil))(t)
	defer machine.Close()
	usage := OK(machine.Usage(context.Background()))(t)
	limit := int(usage.Max)
	defer func() {
		p := plan(t, machine, tuning.Config{MaxPerCore: 1, Min: limit, Cores: 1, Lower: true})
		require.NoError(t, p.Apply(machine))
	}()

	higher := plan(t, machine, tuning.Config{MaxPerCore: 2 * limit, Cores: 1})
	require.False(t, higher.Empty(), higher.String())
	require.NoError(t, higher.Apply(machine))
	again := plan(t, machine, tuning.Config{MaxPerCore: 2 * limit, Cores: 1})
	require.True(t, again.Empty(), again.String())

	kept := plan(t, machine, tuning.Config{MaxPerCore: 100, Cores: 1})
	require.True(t, kept.Empty(), kept.String())
	lower := plan(t, machine, tuning.Config{MaxPerCore: 100, Cores: 1, Lower: true})
	require.NoError(t, lower.Apply(machine))

	testFullTable(t)
}

// plan compares the machine's settings with the wanted ones.
func plan(t *testing.T, machine *Table, want tuning.Config) tuning.Plan {
	t.Helper()
	p := OK(tuning.NewPlan(context.Background(), machine, &want))(t)
	return p
}

// testFullTable fills a table with room for a hundred flows.
func testFullTable(t *testing.T) {
	table, _ := NewTable(t)
	var flows []Flow
	for i := range 200 {
		f := NewFlow(UDP, Client, "10.96.0.10:53", "10.244.0.5:5353", "")
		f.Original.Src = WithPort(f.Original.Src, i)
		f.Reply.Dst = f.Original.Src
		f.Status, f.Timeout = StatusSeenReply|StatusAssured, time.Minute
		flows = append(flows, f)
	}

	c, err := table.Create(context.Background(), All(flows...))
	require.ErrorIs(t, err, ErrTableFull)
	require.Less(t, c, 200)
	usage := OK(table.Usage(context.Background()))(t)
	require.GreaterOrEqual(t, usage.Fraction(), 1.0)

	d, err := table.Delete(context.Background(), table.Flows(context.Background(), Filter{}))
	require.NoError(t, err, "what is full can be emptied")
	require.Positive(t, d)
}

// million enables a test whose table takes a minute and half a gigabyte to fill.
var million = flag.Bool("million", false, "test with a million flows; needs a VM made for tests")

// A cleaning of a table with a million flows deletes the stale flows and no other flows, as
// conntrack(8) counts them. The test prints the cost.
func TestAMillionFlows(t *testing.T) {
	if os.Getenv("KERNLB_VM") == "" || !*million {
		t.Skip("fills the table of the machine: needs a VM made for tests (KERNLB_VM), -million")
	}
	machine := OK(Open(nil))(t)
	defer machine.Close()
	p := plan(t, machine, tuning.Config{MaxPerCore: 1 << 20, Min: 1_100_000, Cores: 1})
	require.NoError(t, p.Apply(machine))

	const n, services, endpoints = 1_000_000, 100, 10
	const stale = n / services / endpoints
	table, ns := NewTable(t)
	start := time.Now()
	created := OK(table.Create(context.Background(), BenchFlows(n)))(t)
	require.Equal(t, n, created)
	t.Logf("%d flows made in %s", n, time.Since(start))
	count := func() int {
		// a list would take minutes
		n := OK(strconv.Atoi(strings.TrimSpace(nstest.Run(t, ns, "conntrack -C"))))(t)
		return n
	}

	require.Equal(t, n, count())
	for i, scan := range []Scan{ScanAll, ScanProtocol, ScanNarrow} {
		var serving []netip.AddrPort
		for j := i + 1; j < endpoints; j++ {
			serving = append(serving,
				netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 4, byte(j)}), 5353))
		}

		got := cleanLogged(t, table, Frontend{Key: Key("10.96.0.4:53", UDP), Endpoints: serving,
			Untranslated: true}, CleanOptions{}.With(scan))
		require.Equal(t, stale, got.Deleted)
		require.Equal(t, n-(i+1)*stale, count())
	}
}

// cleanLogged cleans after a frontend changed, and logs the cost.
func cleanLogged(t *testing.T, table *Table, f Frontend, opts CleanOptions) CleanResult {
	t.Helper()
	m := matcherOf(t, Change{Frontends: []Frontend{f}})
	var use Meter
	var got CleanResult
	use.Run(func() { got = cleaned(t, table, m, opts) })
	t.Logf("%+v: %s, %.0f ms of CPU, %.1f MB allocated: %+v", opts, got.Duration, use.CPU,
		use.Allocated, got)
	return got
}
