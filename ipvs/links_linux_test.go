package ipvs

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
)

// broken lets every request fail.
func broken(bool, func() error) error { return unix.EIO }

// What cannot be asked of rtnetlink is an error, and never taken for something that is not there.
func TestBrokenLinksAreErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend()
	k := &b.kernel
	_, err := k.listAddresses()
	require.NoError(t, err)
	k.links.Wrap(broken)
	_, err = k.listAddresses()
	require.ErrorContains(t, err, "list addresses")
	_, err = b.Observe(t.Context(), nil)
	require.ErrorContains(t, err, "list addresses")

	b = r.backend()
	k = &b.kernel
	r.apply(dataplane.New(b, nil), rigState([]string{"10.244.1.1"}))
	k.links.Wrap(broken)
	_, err = b.Integrity(t.Context())
	require.ErrorContains(t, err, "list rules and routes")
	k.device = "kernlb0"
	for what, do := range map[string]func() error{
		"list rules and routes": func() error { _, err := k.readUnrouted(); return err },
		"interface lo":          k.route,
		"delete rule":           k.unroute,
		"list devices":          func() error { _, err := k.readDevices(); return err },
		"device kernlb0":        func() error { return k.findDevice(&addresses{}) },
		"device 7":              func() error { _, err := k.linkName(7, nil); return err },
		"make device":           k.makeDevice,
		"remove device kernlb0": func() error { return k.removeDevice("kernlb0") },
	} {
		require.ErrorContains(t, do(), what)
	}
	require.False(t, k.routed())
	_, err = k.listAddresses()
	require.ErrorContains(t, err, "device kernlb0")
}

// Timeouts are asked for and set as all else is: what fails is told.
func TestFailuresAboutTimeoutsAreTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b := r.backend(Config{Timeouts: Timeouts(ipvsnl.Timeouts{TCP: time.Hour})})
	rawnltest.FailEach(t, "set", func(ctx context.Context) error {
		return b.kernel.setTunables(ctx, []tunable{{timeoutTCP, "3600"}})
	})
	rawnltest.FailEach(t, "read", func(ctx context.Context) error {
		_, err := b.kernel.readTunables(ctx, b.pl.tunables)
		return err
	})
	rawnltest.FailEach(t, "restore", b.restoring([]tunable{{timeoutTCP, "60"}}))
	now, err := b.kernel.readTunables(t.Context(), b.pl.tunables)
	require.NoError(t, err)
	require.Equal(t, "60", now[timeoutTCP])
}
