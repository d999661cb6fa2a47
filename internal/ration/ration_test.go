package ration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const burst = 8

// spent does something that takes a time whenever it is allowed, for a period in steps, and returns
// how often.
func spent(r *Ration, now *time.Time, period, step, took time.Duration) (n int) {
	for end := now.Add(period); now.Before(end); *now = now.Add(step) {
		if r.Allow(*now) {
			r.Spend(took)
			n++
		}
	}
	return n
}

func TestShortThingsAreAllowedSomeTimesAtOnceAndThenEachSecond(t *testing.T) {
	t.Parallel()
	r := New(burst, 20)
	now := time.Unix(1000, 0)
	require.Equal(t, burst, spent(&r, &now, 10*time.Millisecond, time.Millisecond,
		time.Microsecond))
	require.InDelta(t, 60, spent(&r, &now, time.Minute, time.Millisecond, time.Microsecond), 1)
	now = now.Add(time.Hour)
	require.Equal(t, burst, spent(&r, &now, 10*time.Millisecond, time.Millisecond,
		time.Microsecond), "what was not used is not saved up")
}

func TestLongThingsTakeAShareOfTheTime(t *testing.T) {
	t.Parallel()
	r := New(burst, 20)
	now := time.Unix(1000, 0)
	spent(&r, &now, time.Minute, time.Millisecond, 2*time.Second)
	n := spent(&r, &now, 10*time.Minute, time.Millisecond, 2*time.Second)
	require.InDelta(t, 15, n, 1, "2 s each, a twentieth of 600 s")
}

func TestNothingIsAllowedByDefault(t *testing.T) {
	t.Parallel()
	var r Ration
	require.False(t, r.Allow(time.Unix(1000, 0)))
	require.False(t, r.Allow(time.Unix(1e6, 0)))
}
