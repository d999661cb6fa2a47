package iptables

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestARationIsAShareOfTheTime(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	r := ration{share: 20, most: 3, left: 3}
	allowed := func(at time.Duration, n int) {
		t.Helper()
		for range n {
			require.True(t, r.take(start.Add(at)))
			r.costs(time.Millisecond)
		}
		require.False(t, r.take(start.Add(at)))
	}
	allowed(0, 3)
	require.False(t, r.take(start.Add(19*time.Millisecond)))
	allowed(20*time.Millisecond, 1)
	allowed(60*time.Millisecond, 2)
	allowed(time.Hour, 3)

	allowed(time.Hour+20*time.Millisecond, 1)
	r.costs(0)
	require.False(t, r.take(start.Add(time.Hour+20*time.Millisecond+19*time.Microsecond)))
	require.True(t, r.take(start.Add(time.Hour+20*time.Millisecond+21*time.Microsecond)))

	require.False(t, (&ration{}).take(start), "the zero ration allows nothing")
	r = ration{share: 100, most: 1, left: 1}
	r.restart(start, time.Second)
	require.False(t, r.take(start.Add(99*time.Second)))
	require.True(t, r.take(start.Add(100*time.Second)))
}
