package rawnl

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newNetNS makes a network namespace that lives until the test ends and returns a descriptor of it.
func newNetNS(t testing.TB) int {
	t.Helper()
	type result struct {
		ns  *os.File
		err error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here, in its own namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{err: err}
			return
		}
		ns, err := os.Open("/proc/thread-self/ns/net")
		made <- result{ns, err}
	}()
	r := <-made
	if errors.Is(r.err, unix.EPERM) {
		t.Skip("making a network namespace needs CAP_SYS_ADMIN: run as root, or under unshare -Urn")
	}
	require.NoError(t, r.err)
	t.Cleanup(func() { r.ns.Close() })
	return int(r.ns.Fd())
}

// dialNew returns a connection in a network namespace of its own.
func dialNew(t testing.TB) *Conn {
	t.Helper()
	return dialIn(t, newNetNS(t))
}

// dialIn returns a connection in the network namespace ns.
func dialIn(t testing.TB, ns int) *Conn {
	t.Helper()
	c := ok(Dial(&Config{NetNS: ns}))(t)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}
