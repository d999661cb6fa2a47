package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// traffic makes new connections to some addresses until the test's end. It records the failures,
// and the times of the others.
type traffic struct {
	stop func()

	mu    sync.Mutex
	took  []time.Duration // since lap
	made  int
	wrong []string
}

func startTraffic(t *testing.T, from *netnstest.Host, to ...string) *traffic {
	ctx, cancel := context.WithCancel(t.Context())
	tr := &traffic{}
	var wg sync.WaitGroup
	for _, address := range to {
		wg.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				o := netnstest.Probe{From: from, Proto: servicemodel.TCP,
					To: netip.MustParseAddrPort(address), Timeout: 10 * time.Second}.Send(ctx)
				if ctx.Err() != nil {
					return
				}
				tr.note(address, o, time.Since(begin))
				time.Sleep(20 * time.Millisecond) // so that ports can be reused in time
			}
		})
	}
	tr.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(tr.stop)
	return tr
}

func (tr *traffic) note(to string, o netnstest.Outcome, took time.Duration) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.made++
	tr.took = append(tr.took, took)
	if o.Kind != netnstest.Answered || o.Server == netnstest.Net.Internet {
		tr.wrong = append(tr.wrong, fmt.Sprintf("%d, to %s: %s", tr.made, to, o))
	}
}

// lap returns the times of the connections since the last lap, and requires at least one.
func (tr *traffic) lap(t *testing.T) string {
	t.Helper()
	var l []time.Duration
	require.Eventually(t, func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if len(tr.took) < 50 {
			return false
		}
		l, tr.took = tr.took, nil
		return true
	}, patience, 10*time.Millisecond)
	slices.Sort(l)
	return fmt.Sprintf("%d connections, median %.2f ms, 99%% %.1f ms, slowest %.1f ms", len(l),
		ms(l[len(l)/2]), ms(l[len(l)*99/100]), ms(l[len(l)-1]))
}

// all requires that no connection failed.
func (tr *traffic) all(t *testing.T) {
	t.Helper()
	tr.stop()
	require.Empty(t, tr.wrong, "of %d", tr.made)
	require.Positive(t, tr.made)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
