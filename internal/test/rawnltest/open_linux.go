package rawnltest

import (
	"bytes"
	"io"
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// aloneEnv is set in the process in which a test runs alone.
const aloneEnv = "KERNLB_TEST_ALONE"

// FailEachOpen calls open with a limit of no additional file descriptors, then of one, and so on,
// until open has enough. With too few descriptors, open must return an error and leave no
// descriptor open. With enough, Close must leave no descriptor open. The limit holds for a whole
// process, so the calling test runs again in a separate process. FailEachOpen must be the last call
// of that test.
func FailEachOpen(t *testing.T, open func() (io.Closer, error)) {
	t.Helper()
	if os.Getenv(aloneEnv) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), aloneEnv+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name()+" ")) {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}

	_, err := descriptorsOf(t, math.MaxUint64, open) // with what the runtime opens once
	must(t, err)
	wanted, err := descriptorsOf(t, math.MaxUint64, open)
	must(t, err)
	if wanted.left != 0 {
		t.Fatalf("%d descriptors are left open", wanted.left)
	}
	for limit := uint64(0); ; limit++ {
		n, err := descriptorsOf(t, limit, open)
		switch {
		case err == nil && n == wanted:
			return
		case err == nil:
			t.Fatalf("with a limit of %d, %v descriptors are open, not %v, and there is no error",
				limit, n, wanted)
		case n.open != 0:
			t.Fatalf("%d descriptors are open after the error %v", n.open, err)
		}
	}
}

// counted has the numbers of open descriptors after open and after Close.
type counted struct{ open, left int }

// descriptorsOf calls open with a limit of descriptors, and closes the result.
func descriptorsOf(t *testing.T, limit uint64, open func() (io.Closer, error)) (n counted,
	failure error) {
	t.Helper()
	var is syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &is))
	before := descriptors(t)
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE,
		&syscall.Rlimit{Cur: min(limit, is.Cur), Max: is.Max}))
	c, failure := open()
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &is))
	n.open = descriptors(t) - before
	if failure == nil {
		must(t, c.Close())
		n.left = descriptors(t) - before
	}

	return n, failure
}

// descriptors counts the open file descriptors of the process.
func descriptors(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(l)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
