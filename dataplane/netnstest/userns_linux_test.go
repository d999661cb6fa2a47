package netnstest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// envRole makes a copy of this test binary play a role instead of running tests.
const envRole = "KERNLB_NETNSTEST_TEST_ROLE"

// playRole plays the role of a copy that these tests started in the user namespace.
func playRole() (code int, ok bool) {
	switch os.Getenv(envRole) {
	case "exit":
		heard, err := io.ReadAll(os.Stdin)
		fmt.Printf("uid %d heard: %s (%v)\n", os.Getuid(), heard, err)
		return 42, true
	case "die":
		syscall.Kill(os.Getpid(), syscall.SIGKILL) //nolint:errcheck // seen by the exit code
		return 1, true
	}

	return 0, false
}

// asNobody runs this binary as an ordinary user, in a role or with some tests, and returns its
// output and exit code. TestMain moves the copy into a user namespace. The test is skipped if an
// ordinary user may not create user namespaces.
func asNobody(t *testing.T, role, tests, stdin string) (string, int) {
	t.Helper()
	if os.Getuid() != 0 || os.Getenv(envReExecuted) != "" {
		t.Skip("needs root, to become an ordinary user")
	}
	const nobody = 65534
	cmd := exec.Command("/proc/self/exe", "-test.run=^("+tests+")$", "-test.v", "-test.count=1")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "HOME=")
	})
	cmd.Env = append(cmd.Env, envRole+"="+role, "HOME=/", "TMPDIR=/tmp")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody,
		Gid: nobody}}
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Skipf("cannot run as an ordinary user: %v", err)
	}
	if strings.Contains(out.String(), "needs root or an unprivileged user namespace") {
		t.Skipf("needs unprivileged user namespaces: %s", out.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func TestAnOrdinaryUserMayRunTheTests(t *testing.T) {
	t.Parallel()
	tests := []string{"TestEveryHostReachesEveryOtherDirectly",
		"TestTheInternetAnswersForEveryOtherAddress", "TestDoReturnsTheError"}
	out, code := asNobody(t, "", strings.Join(tests, "|"), "")
	require.Zero(t, code, "%s", out)
	for _, name := range tests {
		require.Contains(t, out, "--- PASS: "+name)
	}
}

func TestTheCopyHasOurStreamsAndWeItsExitCode(t *testing.T) {
	t.Parallel()
	out, code := asNobody(t, "exit", "", "from standard input")
	require.Equal(t, 42, code, "%s", out)
	require.Contains(t, out, "uid 0 heard: from standard input (<nil>)")
}

func TestTheSignalThatKillsTheCopyIsReported(t *testing.T) {
	t.Parallel()
	out, code := asNobody(t, "die", "", "")
	require.Equal(t, 128+int(syscall.SIGKILL), code, "%s", out)
}
