package wait

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const burst = 8

// spent runs an action of duration took whenever the budget allows it, asks every step during the
// period, and returns the number of runs.
func spent(r *Budget, now *time.Time, period, step, took time.Duration) (n int) {
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
	r := NewBudget(burst, 20)
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
	r := NewBudget(burst, 20)
	now := time.Unix(1000, 0)
	spent(&r, &now, time.Minute, time.Millisecond, 2*time.Second)
	n := spent(&r, &now, 10*time.Minute, time.Millisecond, 2*time.Second)
	require.InDelta(t, 15, n, 1, "2 s each, a twentieth of 600 s")
}

func TestNothingIsAllowedByDefault(t *testing.T) {
	t.Parallel()
	var r Budget
	require.False(t, r.Allow(time.Unix(1000, 0)))
	require.False(t, r.Allow(time.Unix(1e6, 0)))
}
