package netnstest

import (
	"context"
	"fmt"
	"os"
)

// envReExecError tells [Require] why the process could not be re-executed.
const envReExecError = "KERNLB_NETNSTEST_REEXEC_ERROR"

// TB has the methods of [testing.TB] that this package needs, so that programs can use this package
// without package testing.
type TB interface {
	Helper()
	Cleanup(f func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Main runs the tests of a package (m is a [testing.M]) in a process that may create network
// namespaces: in this process if possible, otherwise in a copy of it in a new user namespace. Call
// it from TestMain; it does not return.
func Main(m interface{ Run() int }) {
	done, code, err := ReExecInUserNS()
	if done {
		os.Exit(code)
	}
	if err != nil {
		os.Setenv(envReExecError, err.Error()) //nolint:errcheck // the skip message will be shorter
	}
	os.Exit(m.Run())
}

// Require skips the test, with the reason, if network namespaces cannot be created and configured.
func Require(tb TB) {
	tb.Helper()
	err := usable()
	if err == nil {
		return
	}

	// If a user namespace was tried, its error is the better reason.
	reason := os.Getenv(envReExecError)
	if reason == "" {
		reason = fmt.Sprint(err)
	}
	tb.Skipf("needs root or an unprivileged user namespace: %s", reason)
}

// Start returns a cluster that is closed when the test ends. It calls [Require], and fails the test
// if the cluster cannot be built.
func Start(tb TB, opts Options) *Cluster {
	tb.Helper()
	Require(tb)
	c, err := New(context.Background(), opts)
	if err != nil {
		tb.Fatalf("build the test cluster: %v", err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("close the test cluster: %v", err)
		}
	})

	return c
}
