package conntrack

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Events up to the rate are all received. Of more, as many as the rate are received, at the
// beginning twice as many.
func TestARateLimitsEvents(t *testing.T) {
	t.Parallel()
	const most = 500
	now := time.Unix(0, 0)
	b := bucket{rate: most}
	var away time.Time // until then

	// second lets a second pass with events at a rate, and returns how many were received.
	second := func(rate int) (got int) {
		for range rate {
			if now = now.Add(time.Second / time.Duration(rate)); !now.Before(away) {
				got++
				away = now.Add(b.take(now, false))
			}
		}

		return got
	}

	require.Equal(t, 10, second(10))
	require.Equal(t, most, second(most))
	require.InDelta(t, 2*most, second(20_000), most/5)
	for range 10 {
		require.InDelta(t, most, second(20_000), most/5)
		require.InDelta(t, most, second(1000), most/5)
	}
	for range 3 {
		second(10)
	}
	require.Equal(t, 10, second(10))
	require.Equal(t, most, second(most), "a burst")

	require.Positive(t, b.take(now.Add(time.Minute), true), "events were lost")
	few := bucket{rate: 1}
	require.InDelta(t, time.Second, few.take(now, false), float64(time.Second/2))
}
