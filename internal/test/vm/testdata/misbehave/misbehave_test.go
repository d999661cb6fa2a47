//go:build linux

// Package misbehave is run inside the VM by the tests of package vmtest, one test
// at a time: each goes wrong in its own way.
package misbehave

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestFail(t *testing.T) { t.Fatal("this test fails on purpose") }

// TestPanic makes the kernel panic.
func TestPanic(t *testing.T) {
	require.NoError(t, os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
	time.Sleep(time.Minute)
}

// TestHang is not ended by -test.timeout: the program is stopped.
func TestHang(t *testing.T) {
	require.NoError(t, unix.Kill(os.Getpid(), unix.SIGSTOP))
}

// TestKilled ends by a signal.
func TestKilled(t *testing.T) { require.NoError(t, unix.Kill(os.Getpid(), unix.SIGKILL)) }

// TestOrphan leaves a process behind that keeps the output open.
func TestOrphan(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	require.NoError(t, cmd.Start())
}

// TestFlood prints much output that looks like verdicts.
func TestFlood(t *testing.T) {
	line :=
		"--- FAIL: TestNotReal (0.00s) \x00kernlb-vmtest\x00E\x00\x00\x00\x02{}D\x00\x00\x00\x00"
	for i := range 5000 {
		fmt.Println(i, line, strings.Repeat("x", i%50))
	}
}
