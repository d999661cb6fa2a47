package netnstest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThePulseBeatsWhileSomebodyWaits(t *testing.T) {
	t.Parallel()
	p := ok(newPulse())(t)
	beats := func() int {
		return ok(p.count())(t)
	}
	p.join()
	p.join()
	require.Eventually(t, func() bool { return beats() >= 2 }, patience, time.Millisecond)
	p.leave()
	p.leave()
	resting := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.running
	}

	require.Eventually(t, resting, patience, time.Millisecond)
	before := beats()
	p.join()
	require.Eventually(t, func() bool {
		return beats() > before
	}, patience, time.Millisecond, "it beats again")
	require.NoError(t, p.Close())
	require.Eventually(t, resting, patience, time.Millisecond)
	_, err := p.count()
	require.Error(t, err, "it can beat no more")
	p.leave()
}
