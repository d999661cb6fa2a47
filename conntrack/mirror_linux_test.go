package conntrack

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/netnstest"
)

// mirrorOf returns a mirror that does nothing by itself soon, unless the times are set.
func mirrorOf(t *testing.T, table *Table, o MirrorOptions) *Mirror {
	t.Helper()
	x, err := NewMirror(table, o)
	require.NoError(t, err)
	x.times = mirrorTimes{read: time.Hour, check: time.Hour, pause: 10 * time.Millisecond}
	return x
}

// allBut returns a matcher that finds the flows to all endpoints but one stale.
func allBut(t *testing.T, f string, p Protocol, endpoint string) *Matcher {
	t.Helper()
	frontend := FrontendKey{ap(f).Addr(), ap(f).Port(), p}
	m, err := NewMatcher(
		Change{Frontends: []Frontend{{Key: frontend, Endpoints: aps(endpoint), Untranslated: true}}})
	require.NoError(t, err)
	return m
}

func mustClean(t *testing.T, x *Mirror, m *Matcher) CleanResult {
	t.Helper()
	got, err := x.Clean(context.Background(), m, CleanOptions{KeepOpen: true})
	require.NoError(t, err)
	got.Duration = 0
	return got
}

// The kernel drops events of other protocols before they are queued.
func TestEventFilterInTheKernel(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	x := mirrorOf(t, table, MirrorOptions{Protocols: []Protocol{UDP, SCTP}})
	events, err := x.open(eventOptions{types: []EventType{FlowNew, FlowDestroyed},
		protocols: x.protocols, buffer: 1 << 20})
	require.NoError(t, err)
	defer events.close()
	flows := randomTable(rand.New(rand.NewPCG(40, 40)), 300)
	create(t, table, flows...)
	_, err = table.Delete(context.Background(), table.Flows(context.Background(), Filter{}))
	require.NoError(t, err)
	want, got := 0, 0
	for _, f := range flows {
		if f.Protocol != TCP {
			want += 2
		}
	}
	require.Less(t, want, 600)
	buf := make([]byte, eventSize)
	for ; ; got++ {
		n, err := events.receive(buf)
		if err == errNoEvent {
			break
		}
		require.NoError(t, err)
		x := newFlowIndex()
		require.NoError(t, x.apply(buf[:n], func(f *Flow) bool {
			require.NotEqual(t, TCP, f.Protocol)
			return true
		}), hex.EncodeToString(buf[:n]))
	}
	require.Equal(t, want, got)
}

// Real packets: of a UDP client and of a TCP client, the mirror notes the first.
func TestMirrorNotesPackets(t *testing.T) {
	t.Parallel()
	cluster := netnstest.Start(t, netnstest.Options{RemotePods: -1, OutsideClients: -1})
	x := startMirror(t, openIn(t, cluster.Node.NS), MirrorOptions{})
	at := netip.AddrPortFrom(cluster.Pods[1].IPv4, 8080)
	rules(t, cluster.Node.NS, dnat(TCP, ap("10.96.0.10:53"), at, "")+dnat(UDP, ap("10.96.0.10:53"),
		at, ""), "")
	for _, p := range []netnstest.Protocol{netnstest.TCP, netnstest.UDP} {
		require.NoError(t, cluster.Pods[1].Serve(p, 8080))
		probe := netnstest.Probe{From: cluster.Pods[0], Proto: p, To: ap("10.96.0.10:53"),
			SourcePort: 4000, Timeout: 3 * time.Second}
		require.Equal(t, netnstest.Answered, probe.Send(context.Background()).Kind)
	}
	require.Eventually(t, func() bool {
		return x.Stats().Flows > 0
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, MirrorStats{Synced: true, Flows: 1, Events: 1, Lists: 1}, x.Stats())
}

// Clean works in what is in the queue before it looks, though nobody has read it.
func TestMirrorCleansWhatWasMadeJustNow(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	x := mirrorOf(t, table, MirrorOptions{})
	runMirror(t, x)
	waitSynced(t, x)
	stale := flow(UDP, client, "10.96.0.10:53", "10.244.0.5:53", "")
	right := flow(UDP, "10.0.0.1:4001", "10.96.0.10:53", "10.244.0.6:53", "")
	create(t, table, stale, right)
	require.Zero(t, x.Stats().Flows)
	m := allBut(t, "10.96.0.10:53", UDP, "10.244.0.6:53")
	require.Equal(t, CleanResult{Lookups: 1, Misdirected: 1, Deleted: 1}, mustClean(t, x, m))
	require.Equal(t, CleanResult{}, mustClean(t, x, m))
	require.Equal(t, 1, x.Stats().Flows)

	// The same flow again, to the right endpoint and then back.
	again := stale
	again.Reply.Src = right.Reply.Src
	create(t, table, again)
	require.Equal(t, CleanResult{}, mustClean(t, x, m))
	_, err := table.Delete(context.Background(), table.Flows(context.Background(),
		Filter{OriginalDst: addr("10.96.0.10")}))
	require.NoError(t, err)
	create(t, table, stale)
	require.Equal(t, CleanResult{Lookups: 1, Misdirected: 1, Deleted: 1}, mustClean(t, x, m))
	require.Empty(t, list(t, table, Filter{}))
	require.Equal(t, 1, x.Stats().Flows, "one event is not read yet")
	require.Equal(t, CleanResult{}, mustClean(t, x, m))
	require.Zero(t, x.Stats().Flows)
}

func TestMirrorLeavesOtherProtocolsToAPass(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	x := startMirror(t, table, MirrorOptions{})
	for _, p := range []Protocol{TCP, SCTP, UDP} {
		create(t, table, flow(p, client, "10.96.0.10:53", "10.244.0.5:53", ""))
	}
	for _, tc := range []struct {
		protocol Protocol
		want     CleanResult
	}{
		{UDP, CleanResult{Lookups: 1, Misdirected: 1, Deleted: 1}},
		{TCP, CleanResult{Dumps: 1, Seen: 1, Misdirected: 1, Deleted: 1}},
		{SCTP, CleanResult{Dumps: 1, Seen: 1, Misdirected: 1, Deleted: 1}},
	} {
		m := allBut(t, "10.96.0.10:53", tc.protocol, "10.244.0.6:53")
		got, err := x.Clean(context.Background(), m, CleanOptions{Scan: ScanProtocol,
			KeepOpen: true})
		require.NoError(t, err)
		got.Duration = 0
		require.Equal(t, tc.want, got, tc.protocol)
	}
}

// A flow that a late answer began comes from the frontend.
func TestMirrorFindsFlowsThatAreBackwards(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	x := startMirror(t, table, MirrorOptions{})
	backwards := flow(UDP, "10.96.0.10:53", "10.0.0.1:4000", "", "")
	masqueraded := flow(UDP, "10.96.0.10:53", "10.0.0.2:4000", "", "192.0.2.1:53")
	translated := flow(UDP, "10.96.0.10:53", "10.0.0.3:4000", "10.0.0.4:4000", "")
	port := flow(UDP, "10.96.0.10:54", "10.0.0.1:4000", "", "")
	over6 := flow(UDP, "[fd00:96::10]:53", "[fd00::1]:4000", "", "")
	create(t, table, backwards, masqueraded, translated, port, over6)
	m, err := NewMatcher(Change{Frontends: []Frontend{
		{Key: FrontendKey{addr("10.96.0.10"), 53, UDP}, Untranslated: true, Backwards: true},
		{Key: FrontendKey{addr("fd00:96::10"), 53, UDP}, Untranslated: true, Backwards: true},
	}})
	require.NoError(t, err)
	require.Equal(t, CleanResult{Lookups: 3, Untranslated: 2, Deleted: 2}, mustClean(t, x, m),
		"the masqueraded one is looked up, too")
	require.Equal(t, keys([]Flow{masqueraded, translated, port}), keys(list(t, table, Filter{})))
}

// A zone may be of both directions, or of one.
func TestMirrorFindsFlowsOfAZone(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	x := startMirror(t, table, MirrorOptions{})
	var flows []Flow
	for i, zones := range [][2]uint16{{0, 0}, {9, 9}, {9, 0}, {0, 9}, {8, 8}, {8, 0}} {
		for _, f := range []Flow{
			flow(UDP, client, "10.96.0.10:53", "10.244.0.5:53", ""),
			flow(UDP, "[fd00::1]:4000", "[fd00:96::10]:53", "[fd00:244::5]:53", ""),
		} {
			f.Original.Src, f.Reply.Dst = withPort(f.Original.Src, i), withPort(f.Original.Src, i)
			f.Original.Zone, f.Reply.Zone = zones[0], zones[1]
			flows = append(flows, f)
		}
	}
	create(t, table, flows...)
	for _, tc := range []struct {
		zone    uint16
		deleted int
	}{{9, 6}, {0, 2}, {8, 4}} {
		m, err := NewMatcher(Change{Zone: tc.zone, Frontends: []Frontend{
			{Key: FrontendKey{addr("10.96.0.10"), 53, UDP}},
			{Key: FrontendKey{addr("fd00:96::10"), 53, UDP}},
		}})
		require.NoError(t, err)
		require.Equal(t, CleanResult{Lookups: tc.deleted, Misdirected: tc.deleted, Deleted: tc.deleted},
			mustClean(t, x, m))
	}
	require.Empty(t, list(t, table, Filter{}))
}

// When the queue overflows, a pass does what the mirror cannot, and then the mirror lists the table
// again.
func TestMirrorRecoversFromLosses(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	x := mirrorOf(t, table, MirrorOptions{Buffer: 4096})
	x.times.read, x.times.pause = time.Millisecond, 100*time.Millisecond
	runMirror(t, x)
	waitSynced(t, x)
	flows := randomTable(rand.New(rand.NewPCG(41, 41)), 1000)
	create(t, table, flows...)
	stale := flow(UDP, client, "10.96.0.10:53", "10.244.0.5:53", "")
	create(t, table, stale)
	m := allBut(t, "10.96.0.10:53", UDP, "10.244.0.6:53")
	got := mustClean(t, x, m)
	require.Equal(t, 1, got.Deleted)
	require.Positive(t, got.Dumps, "it fell back")
	require.Zero(t, got.Lookups)
	require.Eventually(t, func() bool {
		s := x.Stats()
		return s.Synced && s.Lists > 1 && s.Losses > 0
	}, 10*time.Second, time.Millisecond)
	create(t, table, stale)
	require.Equal(t, CleanResult{Lookups: 1, Misdirected: 1, Deleted: 1}, mustClean(t, x, m))
	require.Len(t, list(t, table, Filter{}), len(flows))
}

func TestMirrorThatDoesNotRun(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	x := mirrorOf(t, table, MirrorOptions{})
	stale := flow(UDP, client, "10.96.0.10:53", "10.244.0.5:53", "")
	m := allBut(t, "10.96.0.10:53", UDP, "10.244.0.6:53")
	pass := func(when string) {
		create(t, table, stale)
		got := mustClean(t, x, m)
		require.Equal(t, 1, got.Deleted, when)
		require.Positive(t, got.Dumps, when)
	}
	pass("before")
	for range 2 {
		stop := runMirror(t, x)
		waitSynced(t, x)
		require.ErrorContains(t, x.Run(context.Background()), "it is being mirrored already")
		create(t, table, stale)
		require.Equal(t, CleanResult{Lookups: 1, Misdirected: 1, Deleted: 1}, mustClean(t, x, m))
		stop()
		require.Equal(t, MirrorStats{Lists: x.Stats().Lists}, x.Stats())
		pass("after")
	}
}

func TestMirrorWithoutEvents(t *testing.T) {
	t.Parallel()
	table, ns := newTable(t)
	x := mirrorOf(t, table, MirrorOptions{})
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
	create(t, table, flow(UDP, client, "10.96.0.10:53", "10.244.0.5:53", ""))
	got := mustClean(t, x, allBut(t, "10.96.0.10:53", UDP, "10.244.0.6:53"))
	require.Equal(t, 1, got.Deleted)
	require.Positive(t, got.Dumps)
	require.False(t, x.Stats().Synced)
	err := <-done
	require.ErrorIs(t, err, ErrNoEvents)
	require.ErrorContains(t, err, "nf_conntrack_events is 0")
	require.ErrorIs(t, x.Run(ctx), ErrNoEvents)
}

// Flows that were there before anybody listened may end without an event. They are forgotten when
// the kernel does not have them, and when they are many.
func TestMirrorForgetsTheDead(t *testing.T) {
	t.Parallel()
	table, _ := newTable(t)
	x := mirrorOf(t, table, MirrorOptions{})
	runMirror(t, x)
	waitSynced(t, x)
	dead := func(i int) Flow {
		f := flow(UDP, client, "10.96.0.10:53", "10.244.0.5:53", "")
		f.Original.Src, f.ID = withPort(f.Original.Src, i), uint32(i)
		return f
	}
	alive := dead(2)
	create(t, table, alive)
	x.mu.Lock()
	for i := range 5 {
		f := dead(i)
		x.index.add(&f) // of the third, the kernel has one with another ID
	}
	x.mu.Unlock()
	require.Equal(t, CleanResult{Lookups: 6, Misdirected: 1, Deleted: 1},
		mustClean(t, x, allBut(t, "10.96.0.10:53", UDP, "10.244.0.6:53")))
	require.Equal(t, CleanResult{}, mustClean(t, x, allBut(t, "10.96.0.10:53", UDP, "10.244.0.6:53")))
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

func TestMirrorOptions(t *testing.T) {
	t.Parallel()
	_, err := NewMirror(nil, MirrorOptions{Protocols: []Protocol{UDP, ICMP}})
	require.ErrorContains(t, err, "Protocols: icmp is not tcp, udp or sctp")
	_, err = NewMirror(nil, MirrorOptions{Buffer: -1})
	require.ErrorContains(t, err, "Buffer: -1 bytes")
}

func TestMirrorWithoutPermission(t *testing.T) {
	t.Parallel()
	_, ns := newTable(t)
	err := ns.Do(func() error {
		table, err := Open(nil)
		if err != nil {
			return err
		}
		defer table.Close()
		return withoutCapabilities(func() error {
			x, err := NewMirror(table, MirrorOptions{})
			if err != nil {
				return err
			}
			if err := x.Run(context.Background()); !errors.Is(err, ErrPermission) {
				return fmt.Errorf("want a permission error, got %w", err)
			}
			return nil
		})
	})
	require.NoError(t, err)
}
