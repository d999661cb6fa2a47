package mirror

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	. "github.com/kernlb/kernlb/internal/test/cttest"

	ct "github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/servicemodel"
)

// mirrorOf returns a mirror that does nothing by itself for long, unless a test sets its times.
func mirrorOf(t *testing.T, table *ct.Table, cfg *Config) *Mirror {
	t.Helper()
	x := OK(New(table, cfg))(t)
	x.times = times{read: time.Hour, check: time.Hour, pause: 10 * time.Millisecond}
	return x
}

// allBut returns a matcher that finds the flows to all endpoints but one stale.
func allBut(t *testing.T, f string, p ct.Protocol, endpoint string) *ct.Matcher {
	t.Helper()
	m := OK(ct.NewMatcher(ct.Change{Frontends: []ct.Frontend{
		{Key: Key(f, p), Endpoints: AddrPorts(endpoint), Untranslated: true},
	}}))(t)
	return m
}

// foundByMirror is the result of cleaning one flow without a pass.
var foundByMirror = ct.CleanResult{Lookups: 1, Misdirected: 1, Deleted: 1}

func mustClean(t *testing.T, table *ct.Table, x *Mirror, m *ct.Matcher) ct.CleanResult {
	t.Helper()
	got := OK(table.Clean(context.Background(), m, ct.CleanOptions{Index: x, KeepOpen: true}))(t)
	got.Duration = 0
	return got
}

// Real packets: of a UDP client and of a TCP client, the mirror notes the first.
func TestMirrorNotesPackets(t *testing.T) {
	t.Parallel()
	cluster := netnstest.Start(t, netnstest.Options{RemotePods: -1, OutsideClients: -1})
	x := startMirror(t, OpenTable(t, cluster.Node.NS), nil)
	at := netip.AddrPortFrom(cluster.Pods[1].IPv4, 8080)
	vip := AddrPort("10.96.0.10:53")
	Rules(t, cluster.Node.NS, DNAT(ct.TCP, vip, at, "")+DNAT(ct.UDP, vip, at, ""), "")
	for _, p := range []servicemodel.Protocol{servicemodel.TCP, servicemodel.UDP} {
		require.NoError(t, cluster.Pods[1].Serve(p, 8080))
		probe := netnstest.Probe{From: cluster.Pods[0], Proto: p, To: AddrPort("10.96.0.10:53"),
			SourcePort: 4000, Timeout: 3 * time.Second}
		require.Equal(t, netnstest.Answered, probe.Send(context.Background()).Kind)
	}
	require.Eventually(t, func() bool {
		return x.Stats().Flows > 0
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, Stats{Synced: true, Flows: 1, Events: 1, Lists: 1}, x.Stats())
}

// Clean works on the events in the queue before it searches, even if Run has not read them.
func TestMirrorCleansWhatWasMadeJustNow(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	x := mirrorOf(t, table, nil)
	RunMirror(t, table, x)
	waitSynced(t, x)
	stale := NewFlow(ct.UDP, Client, "10.96.0.10:53", "10.244.0.5:53", "")
	right := NewFlow(ct.UDP, "10.0.0.1:4001", "10.96.0.10:53", "10.244.0.6:53", "")
	Create(t, table, stale, right)
	require.Zero(t, x.Stats().Flows)
	m := allBut(t, "10.96.0.10:53", ct.UDP, "10.244.0.6:53")
	require.Equal(t, foundByMirror, mustClean(t, table, x, m))
	require.Equal(t, ct.CleanResult{}, mustClean(t, table, x, m))
	require.Equal(t, 1, x.Stats().Flows)

	// The same flow again, to the right endpoint and then back.
	again := stale
	again.Reply.Src = right.Reply.Src
	Create(t, table, again)
	require.Equal(t, ct.CleanResult{}, mustClean(t, table, x, m))
	OK(table.Delete(context.Background(), table.Flows(context.Background(),
		ct.Filter{OriginalDst: Addr("10.96.0.10")})))(t)
	Create(t, table, stale)
	require.Equal(t, foundByMirror, mustClean(t, table, x, m))
	require.Empty(t, List(t, table, ct.Filter{}))
	require.Equal(t, 1, x.Stats().Flows, "one event is not read yet")
	require.Equal(t, ct.CleanResult{}, mustClean(t, table, x, m))
	require.Zero(t, x.Stats().Flows)
}

func TestMirrorLeavesOtherProtocolsToAPass(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	x := startMirror(t, table, nil)
	for _, p := range []ct.Protocol{ct.TCP, ct.SCTP, ct.UDP} {
		Create(t, table, NewFlow(p, Client, "10.96.0.10:53", "10.244.0.5:53", ""))
	}
	for _, tc := range []struct {
		protocol ct.Protocol
		want     ct.CleanResult
	}{
		{ct.UDP, ct.CleanResult{Lookups: 1, Misdirected: 1, Deleted: 1}},
		{ct.TCP, ct.CleanResult{Dumps: 1, Seen: 1, Misdirected: 1, Deleted: 1}},
		{ct.SCTP, ct.CleanResult{Dumps: 1, Seen: 1, Misdirected: 1, Deleted: 1}},
	} {
		m := allBut(t, "10.96.0.10:53", tc.protocol, "10.244.0.6:53")
		got := OK(table.Clean(context.Background(), m, ct.CleanOptions{Index: x,
			Scan: ct.ScanProtocol, KeepOpen: true}))(t)
		got.Duration = 0
		require.Equal(t, tc.want, got, tc.protocol)
	}
}

// A flow that a late answer began has the frontend as its source.
func TestMirrorFindsFlowsThatAreBackwards(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	x := startMirror(t, table, nil)
	backwards := NewFlow(ct.UDP, "10.96.0.10:53", "10.0.0.1:4000", "", "")
	masqueraded := NewFlow(ct.UDP, "10.96.0.10:53", "10.0.0.2:4000", "", "192.0.2.1:53")
	translated := NewFlow(ct.UDP, "10.96.0.10:53", "10.0.0.3:4000", "10.0.0.4:4000", "")
	port := NewFlow(ct.UDP, "10.96.0.10:54", "10.0.0.1:4000", "", "")
	over6 := NewFlow(ct.UDP, "[fd00:96::10]:53", "[fd00::1]:4000", "", "")
	Create(t, table, backwards, masqueraded, translated, port, over6)
	m := OK(ct.NewMatcher(ct.Change{Frontends: []ct.Frontend{
		{Key: Key("10.96.0.10:53", ct.UDP), Untranslated: true, Backwards: true},
		{Key: Key("[fd00:96::10]:53", ct.UDP), Untranslated: true, Backwards: true},
	}}))(t)
	require.Equal(t, ct.CleanResult{Lookups: 3, Untranslated: 2, Deleted: 2},
		mustClean(t, table, x, m), "the masqueraded one is looked up, too")
	require.Equal(t, Keys([]ct.Flow{masqueraded, translated, port}),
		Keys(List(t, table, ct.Filter{})))
}

// A zone may be of both directions, or of one.
func TestMirrorFindsFlowsOfAZone(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	x := startMirror(t, table, nil)
	var flows []ct.Flow
	for i, zones := range [][2]uint16{{0, 0}, {9, 9}, {9, 0}, {0, 9}, {8, 8}, {8, 0}} {
		for _, f := range []ct.Flow{
			NewFlow(ct.UDP, Client, "10.96.0.10:53", "10.244.0.5:53", ""),
			NewFlow(ct.UDP, "[fd00::1]:4000", "[fd00:96::10]:53", "[fd00:244::5]:53", ""),
		} {
			f.Original.Src, f.Reply.Dst = WithPort(f.Original.Src, i), WithPort(f.Original.Src, i)
			f.Original.Zone, f.Reply.Zone = zones[0], zones[1]
			flows = append(flows, f)
		}
	}
	Create(t, table, flows...)
	for _, tc := range []struct {
		zone    uint16
		deleted int
	}{{9, 6}, {0, 2}, {8, 4}} {
		m := OK(ct.NewMatcher(ct.Change{Zone: tc.zone, Frontends: []ct.Frontend{
			{Key: Key("10.96.0.10:53", ct.UDP)},
			{Key: Key("[fd00:96::10]:53", ct.UDP)},
		}}))(t)
		want := ct.CleanResult{Lookups: tc.deleted, Misdirected: tc.deleted,
			Deleted: tc.deleted}
		require.Equal(t, want, mustClean(t, table, x, m))
	}
	require.Empty(t, List(t, table, ct.Filter{}))
}

// When the queue overflows, a pass replaces the mirror, and then the mirror lists the table again.
func TestMirrorRecoversFromLosses(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	x := mirrorOf(t, table, &Config{Buffer: 4096})
	x.times.read, x.times.pause = time.Millisecond, 100*time.Millisecond
	RunMirror(t, table, x)
	waitSynced(t, x)
	flows := RandomFlows(rand.New(rand.NewPCG(41, 41)), 1000)
	Create(t, table, flows...)
	stale := NewFlow(ct.UDP, Client, "10.96.0.10:53", "10.244.0.5:53", "")
	Create(t, table, stale)
	m := allBut(t, "10.96.0.10:53", ct.UDP, "10.244.0.6:53")
	got := mustClean(t, table, x, m)
	require.Equal(t, 1, got.Deleted)
	require.Positive(t, got.Dumps, "it fell back")
	require.Zero(t, got.Lookups)
	require.Eventually(t, func() bool {
		s := x.Stats()
		return s.Synced && s.Lists > 1 && s.Losses > 0
	}, 10*time.Second, time.Millisecond)
	Create(t, table, stale)
	require.Equal(t, foundByMirror, mustClean(t, table, x, m))
	require.Len(t, List(t, table, ct.Filter{}), len(flows))
}

func TestMirrorThatDoesNotRun(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	x := mirrorOf(t, table, nil)
	stale := NewFlow(ct.UDP, Client, "10.96.0.10:53", "10.244.0.5:53", "")
	m := allBut(t, "10.96.0.10:53", ct.UDP, "10.244.0.6:53")
	pass := func(when string) {
		Create(t, table, stale)
		got := mustClean(t, table, x, m)
		require.Equal(t, 1, got.Deleted, when)
		require.Positive(t, got.Dumps, when)
	}
	pass("before")
	for range 2 {
		stop := RunMirror(t, table, x)
		waitSynced(t, x)
		require.ErrorContains(t, x.Run(context.Background()), "it is being mirrored already")
		Create(t, table, stale)
		require.Equal(t, foundByMirror, mustClean(t, table, x, m))
		stop()
		require.Equal(t, Stats{Lists: x.Stats().Lists}, x.Stats())
		pass("after")
	}
}

func TestMirrorWithoutEvents(t *testing.T) {
	t.Parallel()
	table, ns := NewTable(t)
	x := mirrorOf(t, table, nil)
	x.times.check = time.Millisecond
	if err := x.checkEvents(context.Background()); err != nil {
		t.Skipf("the kernel makes no events in this namespace: %v", err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { done <- x.Run(ctx) }()
	waitSynced(t, x)
	require.NoError(t, ns.SetSysctl("net/netfilter/nf_conntrack_events", "0"))
	Create(t, table, NewFlow(ct.UDP, Client, "10.96.0.10:53", "10.244.0.5:53", ""))
	got := mustClean(t, table, x, allBut(t, "10.96.0.10:53", ct.UDP, "10.244.0.6:53"))
	require.Equal(t, 1, got.Deleted)
	require.Positive(t, got.Dumps)
	require.False(t, x.Stats().Synced)
	err := <-done
	require.ErrorIs(t, err, ct.ErrNoEvents)
	require.ErrorContains(t, err, "nf_conntrack_events is 0")
	require.ErrorIs(t, x.Run(ctx), ct.ErrNoEvents)
}

// Flows that are older than the listener may end without an event. The mirror forgets them when a
// lookup does not find them, and when there are many.
func TestMirrorForgetsTheDead(t *testing.T) {
	t.Parallel()
	table, _ := NewTable(t)
	x := mirrorOf(t, table, nil)
	RunMirror(t, table, x)
	waitSynced(t, x)
	dead := func(i int) ct.Flow {
		f := NewFlow(ct.UDP, Client, "10.96.0.10:53", "10.244.0.5:53", "")
		f.Original.Src, f.ID = WithPort(f.Original.Src, i), uint32(i)
		return f
	}
	alive := dead(2)
	Create(t, table, alive)
	x.mu.Lock()
	for i := range 5 {
		f := dead(i)
		x.index.add(&f) // of the third, the kernel has one with another ID
	}
	x.mu.Unlock()
	require.Equal(t, ct.CleanResult{Lookups: 6, Misdirected: 1, Deleted: 1},
		mustClean(t, table, x, allBut(t, "10.96.0.10:53", ct.UDP, "10.244.0.6:53")))
	require.Equal(t, ct.CleanResult{}, mustClean(t, table, x,
		allBut(t, "10.96.0.10:53", ct.UDP, "10.244.0.6:53")))
	require.Zero(t, x.Stats().Flows)

	require.NoError(t, x.check(context.Background()))
	x.mu.Lock()
	for i := range deadFlows + 1 {
		f := dead(i)
		x.index.add(&f)
	}
	x.mu.Unlock()
	require.ErrorIs(t, x.check(context.Background()), errDeadFlows)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := New(nil, &Config{Protocols: []ct.Protocol{ct.UDP, 1}})
	require.ErrorContains(t, err, "Protocols: icmp is not tcp, udp or sctp")
	require.ErrorContains(t, ErrOf(New(nil, &Config{Buffer: -1})), "Buffer: -1 bytes")
	require.ErrorContains(t, ErrOf(New(nil, nil)), "no table")
}

func TestMirrorWithoutPermission(t *testing.T) {
	t.Parallel()
	_, ns := NewTable(t)
	err := ns.Do(func() error {
		table, err := ct.Open(nil)
		if err != nil {
			return err
		}
		defer table.Close()
		return WithoutCapabilities(func() error {
			x, err := New(table, nil)
			if err != nil {
				return err
			}
			if err := x.Run(context.Background()); !errors.Is(err, ct.ErrNoPermission) {
				return fmt.Errorf("want a permission error, got %w", err)
			}
			return nil
		})
	})
	require.NoError(t, err)
}

// startMirror returns a mirror that knows all flows, and runs until the test ends.
func startMirror(tb testing.TB, table *ct.Table, cfg *Config) *Mirror {
	tb.Helper()
	x := OK(New(table, cfg))(tb)
	RunMirror(tb, table, x)
	waitSynced(tb, x)
	return x
}

func waitSynced(tb testing.TB, x *Mirror) {
	tb.Helper()
	WaitFor(tb, func() bool { return x.Stats().Synced })
}
