package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// arguments of a program that serves the demonstration's service at an address.
func arguments(t *testing.T, at, endpoint string, more ...string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "web.yaml")
	write(t, path, demoManifest)
	return append([]string{"-f", path, "-interval", "10ms", "-map", "10.96.0.10:80=" + at,
		"-map", "10.244.0.0/24=" + endpoint}, more...)
}

// echoes requires that a connection carries what is sent over it.
func echoes(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := io.WriteString(c, "still there?")
	require.NoError(t, err)
	b := make([]byte, len("still there?"))
	_, err = io.ReadFull(c, b)
	require.NoError(t, err)
	require.Equal(t, "still there?", string(b))
}

// visits makes new connections all the time, some at once.
type visits struct {
	stop   func()
	made   atomic.Int64
	failed atomic.Int64
	err    atomic.Pointer[error]
}

func startVisits(t *testing.T, at string) *visits {
	v := &visits{}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := once(at); err != nil {
					v.failed.Add(1)
					v.err.Store(&err)
				}
				v.made.Add(1)
				time.Sleep(time.Millisecond)
			}
		})
	}
	v.stop = sync.OnceFunc(func() { close(done); wg.Wait() })
	t.Cleanup(v.stop)
	return v
}

// once connects, and waits for the name of the endpoint.
func once(at string) error {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, err = io.ReadFull(c, make([]byte, 3))
	return err
}

// more waits until some more connections were made.
func (v *visits) more(t *testing.T) {
	t.Helper()
	before := v.made.Load()
	require.Eventually(t, func() bool { return v.made.Load() > before+50 }, patience,
		time.Millisecond)
}

// all requires that none failed.
func (v *visits) all(t *testing.T) {
	t.Helper()
	v.stop()
	if err := v.err.Load(); err != nil {
		require.Zero(t, v.failed.Load(), "of %d: %v", v.made.Load(), *err)
	}
	require.Positive(t, v.made.Load())
}

func TestANewProcessTakesOver(t *testing.T) {
	t.Parallel()
	at, to := free(t), endpoint(t, "one")
	path := filepath.Join(t.TempDir(), "handover")
	args := arguments(t, at, to, "-handover", path, "-drain", "1m")
	first := start(t, args...)
	first.logs(t, "applied added=1")
	v := startVisits(t, at)
	v.more(t)
	old, name := visit(t, at)
	require.Equal(t, "one", name)

	// One that does not get so far changes nothing.
	require.Eventually(t, func() bool {
		_, err := os.Stat(path)
		return err == nil
	}, patience, time.Millisecond)
	broken := &predecessor{path: path}
	files, err := broken.sockets()
	require.NoError(t, err)
	require.Len(t, files, 1)
	on, err := unix.FcntlInt(files[0].Fd(), unix.F_GETFL, 0)
	require.NoError(t, err)
	require.NotZero(t, on&unix.O_NONBLOCK, "the predecessor's own would block, too")
	broken.close()
	require.NoError(t, files[0].Close())
	first.logs(t, "a successor did not begin to serve")
	v.more(t)

	for range 3 {
		next := start(t, args...)
		next.logs(t, "applied added=1")
		first.logs(t, "another process took over")
		v.more(t)
		echoes(t, old) // the first process drains
		require.NoError(t, old.Close())
		old, _ = visit(t, at) // the next one has it
		require.NoError(t, first.Wait())
		first = next
	}
	v.all(t)
}

// A drain that takes too long is ended.
func TestOldConnectionsEndWithTheDrain(t *testing.T) {
	t.Parallel()
	at, to := free(t), endpoint(t, "one")
	args := arguments(t, at, to, "-handover", filepath.Join(t.TempDir(), "h"), "-drain", "0s")
	first := start(t, args...)
	first.logs(t, "applied added=1")
	c, _ := visit(t, at)
	start(t, args...)
	require.NoError(t, first.Wait())
	_, err := c.Read(make([]byte, 1))
	require.True(t, errors.Is(err, syscall.ECONNRESET), "%v", err)
	require.NoError(t, once(at))
}

// freePort returns a port that no client is given by the kernel.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(10_000 + rand.IntN(20_000))
		if l, err := net.Listen("tcp", ":"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// Load balancers learn that this host is not to be sent anybody before its connections end, and ask
// the next process as soon as that serves.
func TestHealthChecksGoAheadOfConnections(t *testing.T) {
	t.Parallel()
	at, to, port := free(t), endpoint(t, "one"), freePort(t)
	check := "127.0.0.1:" + port
	args := arguments(t, at, to, "-handover", filepath.Join(t.TempDir(), "h"), "-drain", "1m")
	write(t, args[1], strings.Replace(demoManifest, "  clusterIP: 10.96.0.10\n",
		"  clusterIP: 10.96.0.10\n  type: LoadBalancer\n  allocateLoadBalancerNodePorts: false\n"+
			"  externalTrafficPolicy: Local\n  healthCheckNodePort: "+port+"\n", 1))
	answers := func(want bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			c, err := net.Dial("tcp", check)
			if err == nil {
				c.Close()
			}
			return (err == nil) == want
		}, patience, time.Millisecond)
	}
	first := start(t, args...)
	answers(true)
	old, _ := visit(t, at)
	second := start(t, args...)
	first.logs(t, "another process took over")
	answers(true)
	echoes(t, old) // it is still the first one's
	require.NoError(t, old.Close())
	require.NoError(t, first.Wait())
	answers(true)

	last, _ := visit(t, at)
	require.NoError(t, second.Process.Signal(syscall.SIGTERM))
	answers(false)
	echoes(t, last)
}

// supervised starts a program with a socket that listens, as systemd does.
func supervised(t *testing.T, l *os.File, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command("sh", "-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec "+self(t))}
	p.Env = append(os.Environ(), asProgram+"="+strings.Join(args, "\n"))
	p.Stderr, p.ExtraFiles = p, []*os.File{l}
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

func self(t *testing.T) string {
	t.Helper()
	name, err := os.Executable()
	require.NoError(t, err)
	return name
}

// A proxy that is killed takes its connections with it. New ones fail until it is started again,
// unless the socket is the supervisor's: then they wait.
func TestAKilledProcessIsStartedAgain(t *testing.T) {
	t.Parallel()
	at, to := free(t), endpoint(t, "one")
	l, err := net.Listen("tcp", at)
	require.NoError(t, err)
	file, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	args := arguments(t, at, to)
	p := supervised(t, file, args...)
	require.NoError(t, l.Close())
	p.logs(t, "applied added=1")
	require.NoError(t, once(at))
	for range 3 {
		c, _ := visit(t, at)
		require.NoError(t, p.Process.Kill())
		_ = p.Wait()
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err, "it is cut")
		waiting := make(chan error, 1)
		go func() { waiting <- once(at) }()
		p = supervised(t, file, args...)
		require.NoError(t, <-waiting)
	}
}

// Without a supervisor's socket, new connections are refused until the program is started again.
func TestConnectionsAreRefusedUntilItIsStartedAgain(t *testing.T) {
	t.Parallel()
	at, to := free(t), endpoint(t, "one")
	args := arguments(t, at, to)
	p := start(t, args...)
	p.logs(t, "applied added=1")
	for range 5 {
		require.NoError(t, once(at))
		require.NoError(t, p.Process.Kill())
		begin := time.Now()
		_ = p.Wait()
		require.ErrorIs(t, once(at), syscall.ECONNREFUSED)
		p = start(t, args...)
		require.Eventually(t, func() bool { return once(at) == nil }, patience, time.Millisecond)
		t.Logf("from the kill to the first connection: %s", time.Since(begin))
	}
}

// Bytes go from socket to socket in the kernel: the program neither reads nor writes them.
func TestBytesAreSpliced(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	at, to := free(t), endpoint(t, "one")
	p := start(t, arguments(t, at, to)...)
	p.logs(t, "applied added=1")
	c, _ := visit(t, at)
	before := p.copied(t)
	go func() { _, _ = io.CopyN(c, zeros{}, size) }()
	n, err := io.CopyN(io.Discard, c, size)
	require.NoError(t, err)
	require.EqualValues(t, size, n)
	require.Less(t, p.copied(t)-before, int64(1<<20), "of 2 x 32 MiB, there and back")
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// copied returns how many bytes a program has read and written: those of splice(2) do not count
// (proc(5), /proc/pid/io).
func (p *program) copied(t *testing.T) (sum int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", p.Process.Pid))
	require.NoError(t, err)
	var read, written int64
	_, err = fmt.Sscanf(string(text), "rchar: %d\nwchar: %d\n", &read, &written)
	require.NoError(t, err)
	return read + written
}
