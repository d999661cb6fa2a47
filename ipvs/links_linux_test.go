package ipvs

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// broken lets every request fail.
func broken(bool, func() error) error { return unix.EIO }

// Timeouts are read and set like everything else: failures are reported.
func TestFailuresAboutTimeoutsAreTold(t *testing.T) {
	t.Parallel()
	_, b := rigWithBackend(t, Config{Timeouts: Timeouts(ipvsnl.Timeouts{TCP: time.Hour})})
	rawnltest.FailEach(t, "set", func(ctx context.Context) error {
		return b.kernel.setTunables(ctx, []tunable{{timeoutTCP, "3600"}})
	})
	rawnltest.FailEach(t, "read", func(ctx context.Context) error {
		_, err := b.kernel.readTunables(ctx, b.pl.tunables)
		return err
	})
	rawnltest.FailEach(t, "restore", b.restoring([]tunable{{timeoutTCP, "60"}}))
	now := ok(b.kernel.readTunables(t.Context(), b.pl.tunables))(t)
	require.Equal(t, "60", now[timeoutTCP])
}
