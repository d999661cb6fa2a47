package conntrack

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The share follows the rate: it falls at once, and rises within a second.
func TestTheShareFollowsTheRate(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	s := sampler{most: 500, keep: wholeEvent}

	// second lets a second pass with events at a rate, and returns the number of kept events.
	second := func(rate int) (kept int) {
		credit := 0.0
		for range rate {
			now = now.Add(time.Second / time.Duration(rate))
			if credit += float64(s.keep) / wholeEvent; credit >= 1 {
				credit--
				kept++
				s.event(now, false)
			}
		}

		return kept
	}

	require.Equal(t, 10, second(10))
	require.Less(t, second(20_000), 2500, "a burst")
	require.InDelta(t, 500, second(20_000), 100)
	require.InDelta(t, 500, second(20_000), 100)
	second(1000)
	require.InDelta(t, 500, second(1000), 100)
	for range 60 {
		second(10)
	}
	require.Equal(t, 10, second(10))

	keep := s.keep
	require.True(t, s.event(now, true), "events were lost")
	require.Equal(t, keep/4, s.keep)
	all := sampler{keep: wholeEvent}
	require.False(t, all.event(now, true))
}
