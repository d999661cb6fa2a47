package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/test/nstest"
)

// The chains of a kube-proxy that runs are its own, until another instance has other names.
func TestARunningKubeProxyIsSpared(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	file := filepath.Join(t.TempDir(), "plan.json")
	out := done(t, ns, webManifest, "plan -f - -backend iptables -o json")
	require.NoError(t, os.WriteFile(file, []byte(out), 0o600))
	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:10249")
		return err
	}))

	server := &http.Server{Handler: http.HandlerFunc(func(a http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(a, "iptables")
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	for _, args := range []string{"apply -f -", "apply -changes " + file,
		"watch -f " + t.TempDir()} {
		fails(t, ns, webManifest, exitFailed, "kube-proxy runs in iptables mode", args+
			" -backend iptables")
	}

	done(t, ns, webManifest, "apply -f - -backend iptables -instance mine")
	done(t, ns, webManifest, "apply -f -")
}

// A program that waits for its standard input ends after a second signal.
func TestASecondSignalEndsTheWaitForInput(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "/proc/self/exe", "plan", "-f", "-")
	c.Env, c.Stdin = append(os.Environ(), asProgram+"=1"), r
	require.NoError(t, c.Start())
	ok(w.WriteString("\n"))(t)
	require.Eventually(t, func() bool {
		return ok(unix.IoctlGetInt(int(w.Fd()), unix.TIOCINQ))(t) == 0
	}, time.Minute, 10*time.Millisecond, "it reads")
	ended := make(chan error)
	go func() { ended <- c.Wait() }()
	for { // signals that come before the program has handled the last one are lost
		_ = c.Process.Signal(syscall.SIGTERM)
		select {
		case err = <-ended:
			require.EqualError(t, err, "signal: terminated")
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
