package main

import (
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// asProgram makes the test binary kernlb-top.
const asProgram = "KERNLB_TOP_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}

	os.Exit(m.Run())
}

// node is a node with three services of one, two and three endpoints, which are counted.
func node(t *testing.T) *netnstest.Cluster {
	t.Helper()
	c := netnstest.Start(t, netnstest.Options{})
	b := must.OK(nftables.New(&nftables.Config{NetNS: c.Node.NS.NetNS()}))(t)
	t.Cleanup(func() { b.Close() })
	state := servicemodel.State{}.WithNode(servicemodel.Node{Name: "node"})
	for i := range 3 {
		require.NoError(t, c.Pods[i].Serve(servicemodel.TCP, 8080))
		var eps []servicemodel.Endpoint
		for _, pod := range c.Pods[:i+1] {
			eps = append(eps, endpoint(pod.IPv4))
		}
		state = state.WithService(web(i)).WithEndpoints(name(i), eps)
	}

	must.OK(dataplane.New(b, nil).Apply(t.Context(), state))(t)
	counted := must.OK(counters.Open(&counters.Config{NetNS: c.Node.NS.NetNS()}))(t)
	t.Cleanup(func() { counted.Close() })
	require.NoError(t, counted.Start(t.Context()))
	return c
}

// connect connects to the first service of a node.
func connect(t *testing.T, c *netnstest.Cluster) {
	t.Helper()
	got := netnstest.Probe{From: c.Pods[1], Proto: servicemodel.TCP,
		To: netip.AddrPortFrom(address(0), 80)}.Send(t.Context())
	require.Equal(t, netnstest.Answered, got.Kind, got)
}

// program returns kernlb-top, not started yet. Its environment keeps termenv from asking the
// terminal for its colours, because that waits five seconds for the answer.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "TERM=tmux-256color", "NO_COLOR=1")
	return cmd
}

// terminal is a pseudo-terminal on which kernlb-top runs.
type terminal struct {
	t    *testing.T
	file *os.File
	mu   sync.Mutex
	raw  strings.Builder // output since the last call of shows
}

func (x *terminal) follow() {
	buf := make([]byte, 1<<12)
	for {
		n, err := x.file.Read(buf)
		x.mu.Lock()
		x.raw.Write(buf[:n])
		x.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// shows waits for a text in the output, and returns the output up to it.
func (x *terminal) shows(text string) string {
	x.t.Helper()
	var all string
	require.Eventually(x.t, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		all = x.raw.String()
		return strings.Contains(ansi.Strip(all), text)
	}, time.Minute, 10*time.Millisecond, "%q is not shown", text)

	return all
}

func (x *terminal) press(keys string) {
	x.t.Helper()
	x.mu.Lock()
	x.raw.Reset()
	x.mu.Unlock()
	must.OK(io.WriteString(x.file, keys))(x.t)
}

// In a terminal, connections appear as they are made. Keys and a new size have their effects.
func TestInATerminal(t *testing.T) {
	t.Parallel()
	c := node(t)
	cmd := program(t, "-interval", "100ms")
	x := &terminal{t: t}
	require.NoError(t, c.Node.NS.Do(func() (err error) {
		x.file, err = pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
		return err
	}))

	t.Cleanup(func() { x.file.Close() })
	go x.follow()
	require.NotContains(t, x.shows("> shop/app-00"), "\x1b[31m", "NO_COLOR")
	x.shows("not known: no page at http://127.0.0.1:10256")
	for range 3 {
		connect(t, c)
	}
	x.press("\r")
	x.shows("-> 10.244.1.1:8080")
	x.shows("100.0 %")
	require.NoError(t, pty.Setsize(x.file, &pty.Winsize{Rows: 30, Cols: 120}))
	x.press("\x1b")
	x.shows("> shop/app-00")
	x.press(" ")
	x.shows("paused")
	x.press("q")
	require.NoError(t, cmd.Wait())
}

// Without a terminal, one table is printed.
func TestOnce(t *testing.T) {
	t.Parallel()
	c := node(t)
	connect(t, c)
	connect(t, c)
	var out []byte
	require.NoError(t, c.Node.NS.Do(func() (err error) {
		out, err = program(t, "-interval", "100ms", "-page", "").Output()
		return err
	}))

	require.Regexp(t, `^nftables  3 services  \S+ conn/s .*
recent changes and latencies are not known: -page is empty
  SERVICE +ENDPOINTS +CONN/S +PACKETS/S +IN B/S +OUT B/S +CONNECTIONS
  shop/app-00 +1 +\S+ +\S+ +\S+ +\S+ +2
  shop/app-01 +2 +\S+ +\S+ +\S+ +\S+ +0
  shop/app-02 +3 +\S+ +\S+ +\S+ +\S+ +0
$`, string(out))
	empty := must.OK(netnstest.NewNS("empty"))(t)
	t.Cleanup(func() { empty.Close() })
	var errs strings.Builder
	require.NoError(t, empty.Do(func() error {
		cmd := program(t, "-once")
		cmd.Stderr = &errs
		require.Error(t, cmd.Run())
		return nil
	}))

	require.Contains(t, errs.String(), "no backend has services of the instance kernlb")
}
