package conntrack_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	. "github.com/kernlb/kernlb/conntrack"
	. "github.com/kernlb/kernlb/internal/test/cttest"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

func TestFlowsComeBackAsCreated(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	flows := RandomFlows(rand.New(rand.NewPCG(1, 1)), 500)
	Create(t, table, flows...)
	got := List(t, table, Filter{})
	require.Equal(t, Keys(flows), Keys(got))
	for _, f := range got {
		require.Equal(t, f.Reply.Src != f.Original.Dst, f.Status&StatusDstNAT != 0, f.String())
		require.Equal(t, f.Reply.Dst != f.Original.Src, f.Status&StatusSrcNAT != 0, f.String())
	}

	again := OK(table.Create(context.Background(), All(flows...)))(t)
	require.Zero(t, again)
}

// The filters of the kernel and of this package agree, so a filter in the kernel loses no wanted
// flow.
func TestFiltersAgreeWithTheKernel(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	Create(t, table, RandomFlows(r, 300)...)
	all := List(t, table, Filter{})
	for range 300 {
		filter := randomFilter(r)
		want := slices.DeleteFunc(slices.Clone(all), func(f Flow) bool { return !filter.Match(&f) })
		if _, err := filter.Dumps(); err != nil {
			continue
		}
		require.Equal(t, Keys(want), Keys(List(t, table, filter)), "seed %d: %+v", seed, filter)
	}
}

// From the stated versions on, the kernel filters by the fields that the documentation of Filter
// lists.
func TestKernelFilters(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	Create(t, table, RandomFlows(rand.New(rand.NewPCG(3, 3)), 300)...)
	all := List(t, table, Filter{})
	zone := uint16(1)
	for _, tc := range []struct {
		name         string
		major, minor int
		request      DumpRequest
	}{
		{"family", 4, 20, DumpRequest{Family: IPv6}},
		{"mark", 4, 20, DumpRequest{Mark: 1, MarkMask: 3}},
		{"protocol", 5, 8, DumpRequest{Family: IPv4, Protocol: UDP}},
		{"frontend", 5, 8, DumpRequest{Family: IPv4, Protocol: TCP, Dst: Addr("10.0.0.1"),
			DstPort: 53}},
		{"frontend without address", 5, 8, DumpRequest{Family: IPv6, Protocol: TCP, DstPort: 53}},
		{"frontend of SCTP: its port does not count", 5, 8,
			DumpRequest{Family: IPv4, Protocol: SCTP, DstPort: 53}},
		{"client", 5, 8, DumpRequest{Family: IPv4, Src: Addr("10.0.0.1")}},
		{"endpoint", 6, 1, DumpRequest{Family: IPv4, Protocol: UDP, Src: Addr("10.0.0.2"),
			SrcPort: 54, Reply: true}},
		{"status", 5, 15, DumpRequest{Status: StatusAssured, StatusMask: StatusAssured}},
		{"status that is clear", 5, 15, DumpRequest{StatusMask: StatusAssured}},
		{"zone", 6, 8, DumpRequest{Zone: &zone}},
	} {
		var sent []Flow
		err := table.Scan(context.Background(), []DumpRequest{tc.request}, WantAll,
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
			require.Equal(t, Keys(want), Keys(sent), tc.name)
			continue
		}

		require.Subset(t, Keys(sent), Keys(want), "%s: an older kernel may send more, never less",
			tc.name)
	}
}

func kernelAtLeast(tb testing.TB, major, minor int) bool {
	var name unix.Utsname
	require.NoError(tb, unix.Uname(&name))
	var haveMajor, haveMinor int
	OK(fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &haveMajor, &haveMinor))(tb)
	return haveMajor > major || haveMajor == major && haveMinor >= minor
}

// volatile matches the parts of conntrack(8)'s listing that change without a change of the flow.
var volatile = regexp.MustCompile(`^(\S+ +)\d+ \d+|packets=\d+ bytes=\d+ | use=\d+.*$`)

func TestFlowsAreThoseThatConntrackLists(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("conntrack"); err != nil {
		t.Skip("conntrack(8) is not installed")
	}
	table, ns := NewTable(t)
	Create(t, table, RandomFlows(rand.New(rand.NewPCG(4, 4)), 200)...)
	ping := NewFlow(ICMP, "10.0.0.9:77", "10.0.0.8:77", "", "")
	ping.Original.ICMPType = 8
	Create(t, table, ping)
	var want []string
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, line := range strings.Split(
			strings.TrimSpace(nstest.Run(t, ns, "conntrack -L -f "+family)), "\n") {
			line = volatile.ReplaceAllString(line, "$1")
			want = append(want, strings.Join(strings.Fields(line), " "))
		}
	}

	var got []string
	for _, f := range List(t, table, Filter{}) {
		line := f.String()
		protocol, rest, _ := strings.Cut(line, " ")
		_, rest, _ = strings.Cut(rest, " ") // the timeout
		got = append(got, protocol+" "+rest)
	}

	require.ElementsMatch(t, want, got)
}

func TestListingStops(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	Create(t, table, RandomFlows(rand.New(rand.NewPCG(5, 5)), 2000)...)
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
		last = err
		if err == nil {
			n++
			cancel()
		}
	}

	require.ErrorIs(t, last, context.Canceled)
	require.Less(t, n, 2000)

	last = nil
	for _, err := range table.Flows(context.Background(),
		Filter{OriginalSrc: Addr("fe80::1%eth0")}) {
		last = err
	}

	require.ErrorIs(t, last, ErrBadFilter)
}

func TestClosedTable(t *testing.T) {
	t.Parallel()
	foreign, _ := NewTable(t)
	own := OK(Open(nil))(t)
	for _, table := range []*Table{foreign, own} {
		require.NoError(t, table.Close())
		_, err := table.Usage(context.Background())
		require.ErrorIs(t, err, ErrClosed)
		for _, err := range table.Flows(context.Background(), Filter{}) {
			require.ErrorIs(t, err, ErrClosed)
		}
		_, err = table.Follow(context.Background(), FollowOptions{})
		require.ErrorIs(t, err, ErrClosed)
		_, err = table.NodeAddrs(nil)
		require.ErrorIs(t, err, ErrClosed)
		f := NewFlow(UDP, Client, "10.96.0.10:53", "", "")
		_, err = table.Delete(context.Background(), All(f))
		require.ErrorIs(t, err, ErrClosed)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	Create(t, table, RandomFlows(rand.New(rand.NewPCG(6, 6)), 100)...)
	u := OK(table.Usage(context.Background()))(t)
	require.EqualValues(t, 100, u.Count)
	require.NotZero(t, u.Max)
	require.EqualValues(t, 100, u.Stats.Inserted)
	require.InDelta(t, 100/float64(u.Max), u.Fraction(), 1e-9)
}
