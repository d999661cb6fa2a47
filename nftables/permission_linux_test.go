package nftables

import (
	"io/fs"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// withoutCapabilities runs f on a thread that has no effective capabilities, and ends with it.
func withoutCapabilities(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		none := [2]unix.CapUserData{}
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3},
			&none[0]); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func TestNewSaysThatThePermissionIsMissing(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	err := withoutCapabilities(t, func() error {
		b, err := New(nil)
		if err == nil {
			b.Close()
		}
		return err
	})
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorContains(t, err, "nftables: open: ")
	var refused *dataplane.OpError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, unix.EPERM, refused.Errno)
	require.NotEmpty(t, refused.Op+refused.Object)
}
