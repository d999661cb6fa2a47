package conntrack

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/netnstest"
)

// newTable returns the table of a fresh namespace.
func newTable(tb testing.TB) (*Table, *netnstest.NS) {
	tb.Helper()
	netnstest.Require(tb)
	ns, err := netnstest.NewNS("conntrack")
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, ns.Close()) })
	return openIn(tb, ns), ns
}

// openIn opens the table of a namespace.
func openIn(tb testing.TB, ns *netnstest.NS) *Table {
	tb.Helper()
	table, err := Open(&Config{NetNS: ns.Fd()})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, table.Close()) })
	return table
}

func create(tb testing.TB, table *Table, flows ...Flow) {
	tb.Helper()
	for i := range flows {
		if flows[i].Timeout == 0 {
			flows[i].Timeout = 10 * time.Minute
		}
	}
	c, err := table.Create(context.Background(), All(flows...))
	require.NoError(tb, err)
	require.Equal(tb, CreateResult{Created: len(flows)}, c)
}

func list(tb testing.TB, table *Table, filter Filter) []Flow {
	tb.Helper()
	var all []Flow
	for f, err := range table.Flows(context.Background(), filter) {
		require.NoError(tb, err)
		all = append(all, f)
	}
	return all
}

// randomTable returns flows that differ in their tuples.
func randomTable(r *rand.Rand, n int) []Flow {
	seen := map[[2]Tuple]bool{}
	var flows []Flow
	for len(flows) < n {
		f := randomFlow(r)
		f.Original.Src = netip.AddrPortFrom(f.Original.Src.Addr(), uint16(1024+len(flows)))
		f.Reply.Dst = f.Original.Src
		if r.IntN(3) == 0 {
			f.Reply.Dst = netip.AddrPortFrom(f.Reply.Dst.Addr().Next(), f.Original.Src.Port())
		}
		f.Status &= StatusAssured
		f.Timeout = 10 * time.Minute
		if f.Protocol == TCP {
			f.TCP = TCPEstablished
		}
		if seen[[2]Tuple{f.Original, f.Reply}] {
			continue
		}
		seen[[2]Tuple{f.Original, f.Reply}] = true
		flows = append(flows, f)
	}
	return flows
}

func TestFlowsComeBackAsCreated(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	flows := randomTable(rand.New(rand.NewPCG(1, 1)), 500)
	create(t, table, flows...)
	got := list(t, table, Filter{})
	require.Equal(t, keys(flows), keys(got))
	for _, f := range got {
		require.Equal(t, f.Reply.Src != f.Original.Dst, f.Status&StatusDstNAT != 0, f.String())
		require.Equal(t, f.Reply.Dst != f.Original.Src, f.Status&StatusSrcNAT != 0, f.String())
	}

	again, err := table.Create(context.Background(), All(flows...))
	require.NoError(t, err)
	require.Equal(t, CreateResult{Existing: len(flows)}, again)
}

// The filters of the kernel and of this package agree, so that what is handed down loses nothing.
func TestFiltersAgreeWithTheKernel(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	create(t, table, randomTable(r, 300)...)
	all := list(t, table, Filter{})
	for range 300 {
		filter := randomFilter(r)
		want := slices.DeleteFunc(slices.Clone(all), func(f Flow) bool { return !filter.Match(&f) })
		if _, err := filter.dumps(); err != nil {
			continue
		}
		require.Equal(t, keys(want), keys(list(t, table, filter)), "seed %d: %+v", seed, filter)
	}
}

// The kernel does filter what the documentation of Filter says, from the stated versions on.
func TestKernelFilters(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	create(t, table, randomTable(rand.New(rand.NewPCG(3, 3)), 300)...)
	all := list(t, table, Filter{})
	zone := uint16(1)
	for _, tc := range []struct {
		name         string
		major, minor int
		request      dumpRequest
	}{
		{"family", 4, 20, dumpRequest{family: IPv6}},
		{"mark", 4, 20, dumpRequest{mark: 1, markMask: 3}},
		{"protocol", 5, 8, dumpRequest{family: IPv4, protocol: UDP}},
		{"frontend", 5, 8, dumpRequest{family: IPv4, protocol: TCP, dst: addr("10.0.0.1"),
			dstPort: 53}},
		{"frontend without address", 5, 8, dumpRequest{family: IPv6, protocol: TCP, dstPort: 53}},
		{"frontend of SCTP: its port does not count", 5, 8,
			dumpRequest{family: IPv4, protocol: SCTP, dstPort: 53}},
		{"client", 5, 8, dumpRequest{family: IPv4, src: addr("10.0.0.1")}},
		{"endpoint", 6, 1, dumpRequest{family: IPv4, protocol: UDP, src: addr("10.0.0.2"),
			srcPort: 54, reply: true}},
		{"status", 5, 15, dumpRequest{status: StatusAssured, statusMask: StatusAssured}},
		{"status that is clear", 5, 15, dumpRequest{statusMask: StatusAssured}},
		{"zone", 6, 8, dumpRequest{zone: &zone}},
	} {
		var sent []Flow
		err := table.scan(context.Background(), []dumpRequest{tc.request}, wantAll,
			func(f *Flow) error {
				sent = append(sent, *f)
				return nil
			})
		require.NoError(t, err, tc.name)
		want := slices.DeleteFunc(slices.Clone(all), func(f Flow) bool {
			return !kernelMatch(tc.request, &f)
		})
		require.NotEmpty(t, want, tc.name)
		require.Less(t, len(want), len(all), tc.name)
		if kernelAtLeast(t, tc.major, tc.minor) {
			require.Equal(t, keys(want), keys(sent), tc.name)
			continue
		}
		require.Subset(t, keys(sent), keys(want), "%s: an older kernel may send more, never less",
			tc.name)
	}
}

// Why IPv6 addresses are not handed down: kernels from 5.8 on, until they were mended, send all
// flows but those wanted.
func TestKernelsAndIPv6Addresses(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	create(t, table, randomTable(rand.New(rand.NewPCG(8, 8)), 300)...)
	request := dumpRequest{family: IPv6, dst: addr("fd00::1")}
	var right, inverted, sent []Flow
	for _, f := range list(t, table, Filter{Family: IPv6}) {
		if kernelMatch(request, &f) {
			right = append(right, f)
		} else {
			inverted = append(inverted, f)
		}
	}
	err := table.scan(context.Background(), []dumpRequest{request}, wantAll, func(f *Flow) error {
		sent = append(sent, *f)
		return nil
	})
	require.NoError(t, err)
	if slices.Equal(keys(inverted), keys(sent)) {
		t.Log("this kernel inverts the comparison")
		return
	}
	require.Equal(t, keys(right), keys(sent), "this kernel is mended")
}

func kernelAtLeast(tb testing.TB, major, minor int) bool {
	var name unix.Utsname
	require.NoError(tb, unix.Uname(&name))
	var haveMajor, haveMinor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &haveMajor, &haveMinor)
	require.NoError(tb, err)
	return haveMajor > major || haveMajor == major && haveMinor >= minor
}

// What conntrack(8) lists, apart from what changes by itself.
var volatile = regexp.MustCompile(`^(\S+ +)\d+ \d+|packets=\d+ bytes=\d+ | use=\d+.*$`)

func TestFlowsAreThoseThatConntrackLists(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("conntrack"); err != nil {
		t.Skip("conntrack(8) is not installed")
	}
	table, ns := newTable(t)
	create(t, table, randomTable(rand.New(rand.NewPCG(4, 4)), 200)...)
	ping := flow(ICMP, "10.0.0.9:77", "10.0.0.8:77", "", "")
	ping.Original.ICMPType = 8
	create(t, table, ping)
	var want []string
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, line := range strings.Split(
			strings.TrimSpace(run(t, ns, "conntrack", "-L", "-f", family)), "\n") {
			line = volatile.ReplaceAllString(line, "$1")
			want = append(want, strings.Join(strings.Fields(line), " "))
		}
	}
	var got []string
	for _, f := range list(t, table, Filter{}) {
		line := f.String()
		protocol, rest, _ := strings.Cut(line, " ")
		_, rest, _ = strings.Cut(rest, " ") // the timeout
		got = append(got, protocol+" "+rest)
	}
	require.ElementsMatch(t, want, got)
}

// run runs a program in the namespace and returns what it prints.
func run(tb testing.TB, ns *netnstest.NS, name string, args ...string) string {
	tb.Helper()
	return runInput(tb, ns, "", name, args...)
}

func runInput(tb testing.TB, ns *netnstest.NS, input, name string, args ...string) string {
	tb.Helper()
	var out []byte
	err := ns.Do(func() (err error) {
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(input)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if out, err = cmd.Output(); err != nil {
			err = fmt.Errorf("%s: %w: %s", name, err, stderr.String())
		}
		return err
	})
	require.NoError(tb, err)
	return string(out)
}

func TestListingStops(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	create(t, table, randomTable(rand.New(rand.NewPCG(5, 5)), 2000)...)
	n := 0
	for _, err := range table.Flows(context.Background(), Filter{}) {
		require.NoError(t, err)
		if n++; n == 10 {
			break
		}
	}
	require.Equal(t, 10, n)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n = 0
	var last error
	for _, err := range table.Flows(ctx, Filter{}) {
		if last = err; err == nil {
			n++
			cancel()
		}
	}
	require.ErrorIs(t, last, context.Canceled)
	require.Less(t, n, 2000)

	_, err := CountBy(table.Flows(context.Background(), Filter{Family: 7}), func(*Flow) int {
		return 0
	})
	require.ErrorIs(t, err, ErrBadFilter)
}

func TestClosedTable(t *testing.T) {
	t.Parallel()
	_, ns := newTable(t)
	table, err := Open(&Config{NetNS: ns.Fd()})
	require.NoError(t, err)
	require.NoError(t, table.Close())
	_, err = table.Delete(context.Background(), All(flow(UDP, client, "10.96.0.10:53", "", "")))
	require.ErrorIs(t, err, ErrClosed)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	create(t, table, randomTable(rand.New(rand.NewPCG(6, 6)), 100)...)
	u, err := table.Usage(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 100, u.Count)
	require.NotZero(t, u.Max)
	require.EqualValues(t, 100, u.Stats.Inserted)
	require.InDelta(t, 100/float64(u.Max), u.Fraction(), 1e-9)
}
