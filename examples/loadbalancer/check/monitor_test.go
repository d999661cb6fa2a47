package check_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/examples/loadbalancer/check"
)

// soon waits for something on a machine that may be very busy.
func soon(t *testing.T, ok func() bool, what string) {
	t.Helper()
	require.Eventually(t, ok, 30*time.Second, time.Millisecond, what)
}

// monitor returns a monitor and the states that it tells.
func monitor(t *testing.T) (*check.Monitor, <-chan check.Report) {
	told := make(chan check.Report, 100)
	m := check.NewMonitor(func(r check.Report) { told <- r })
	t.Cleanup(m.Close)
	return m, told
}

// switched is a server whose answers can be switched, and the target that it is.
func switched(t *testing.T) (*atomic.Bool, check.Target) {
	t.Helper()
	good := &atomic.Bool{}
	good.Store(true)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !good.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	spec := check.Spec{Type: check.HTTP, Interval: time.Millisecond, Timeout: long}
	return good, spec.Target(s.Listener.Addr().(*net.TCPAddr).AddrPort())
}

func TestChangesAreTold(t *testing.T) {
	t.Parallel()
	good, target := switched(t)
	m, told := monitor(t)
	m.Set(map[check.Target]check.State{target: check.Unknown}, 0)
	require.Equal(t, check.Up, (<-told).State)
	good.Store(false)
	r := <-told
	require.Equal(t, check.Down, r.State)
	require.EqualError(t, r.Err, "status 503")
	require.GreaterOrEqual(t, r.Failed, uint64(3))
	require.False(t, r.Since.IsZero())
	require.Equal(t, check.Down, m.State(target))
	good.Store(true)
	require.Equal(t, check.Up, (<-told).State)
}

// What a target was before counts: one that is in use is not told to be up, and one that is down
// needs as many successes as ever.
func TestWhatWasKnownBeforeCounts(t *testing.T) {
	t.Parallel()
	good, target := switched(t)
	good.Store(false)
	m, told := monitor(t)
	m.Set(map[check.Target]check.State{target: check.Up}, 0)
	require.Equal(t, check.Up, m.State(target))
	r := <-told
	require.Equal(t, check.Down, r.State)
	require.Equal(t, uint64(3), r.Failed, "one failure is not enough")
}

// A new set leaves those alone that were there, and ends the checks of those that are gone.
func TestOnlyWhatIsNewBegins(t *testing.T) {
	t.Parallel()
	_, stays := switched(t)
	_, leaves := switched(t)
	_, comes := switched(t)
	m, told := monitor(t)
	m.Set(map[check.Target]check.State{stays: check.Unknown, leaves: check.Unknown}, 1)
	<-told
	<-told
	m.Set(map[check.Target]check.State{stays: check.Down, comes: check.Unknown}, 2)
	require.Equal(t, check.Up, m.State(stays))
	require.Equal(t, check.Unknown, m.State(leaves))
	require.Equal(t, comes, (<-told).Target)
	require.Len(t, m.Reports(), 2)
	m.Set(nil, 0)
	require.Empty(t, m.Reports())
}

// No more checks are under way at a time than allowed, and what waits for its turn does not fail.
func TestChecksAtATimeAreBounded(t *testing.T) {
	t.Parallel()
	const most, targets = 3, 20
	var now, peak atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
		}
		time.Sleep(2 * time.Millisecond)
	}))
	t.Cleanup(s.Close)
	all := map[check.Target]check.State{}
	for i := range targets {
		spec := check.Spec{Type: check.HTTP, Path: "/" + string(rune('a'+i)), Timeout: long,
			Interval: time.Millisecond}
		all[spec.Target(s.Listener.Addr().(*net.TCPAddr).AddrPort())] = check.Unknown
	}
	m, told := monitor(t)
	m.Set(all, most)
	for range targets {
		require.Equal(t, check.Up, (<-told).State)
	}
	require.LessOrEqual(t, peak.Load(), int64(most))
	soon(t, func() bool { return peak.Load() == most }, "and so many are")
}

// Close waits for checks that hang.
func TestCloseEndsChecks(t *testing.T) {
	t.Parallel()
	hangs := httptest.NewServer(http.HandlerFunc(web))
	defer hangs.Close()
	spec := check.Spec{Type: check.HTTP, Path: "/hangs", Timeout: time.Hour}
	m, _ := monitor(t)
	m.Set(map[check.Target]check.State{
		spec.Target(hangs.Listener.Addr().(*net.TCPAddr).AddrPort()): check.Unknown}, 0)
	m.Close()
	require.Equal(t, check.Unknown, m.State(check.Target{Addr: netip.AddrPort{}}))
}
