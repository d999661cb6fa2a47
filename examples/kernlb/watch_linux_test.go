package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// watched is a program that watches a directory in a namespace.
type watched struct {
	t    *testing.T
	ns   *netnstest.NS
	dir  string
	args []string
	log  *lockedBuffer
	stop context.CancelFunc
	code chan int
}

// lockedBuffer is written by the program and read by the test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func newWatched(t *testing.T, args ...string) *watched {
	t.Helper()
	w := &watched{t: t, ns: newNS(t), dir: t.TempDir()}
	w.args = append([]string{"watch", "-f", w.dir, "-copies", t.TempDir()}, args...)
	return w
}

// start runs the program until halt.
func (w *watched) start() {
	ctx, stop := context.WithCancel(w.t.Context())
	w.stop, w.code, w.log = stop, make(chan int, 1), &lockedBuffer{}
	go func() {
		_ = w.ns.Do(func() error {
			p := &program{stdin: strings.NewReader(""), stdout: w.log, stderr: w.log}
			w.code <- p.run(ctx, w.args)
			return nil
		})
	}()
	w.t.Cleanup(stop)
}

// halt ends the program as a signal does.
func (w *watched) halt() {
	w.stop()
	require.Equal(w.t, exitDone, <-w.code, "%s", w.log)
}

// write puts a file in place as kubectl and configuration management do: under another name first.
func (w *watched) write(name, text string) {
	path := filepath.Join(w.t.TempDir(), "new")
	require.NoError(w.t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(w.t, os.Rename(path, filepath.Join(w.dir, name)))
}

func (w *watched) show() string {
	code, out, errs := kernlb(w.t, w.ns, "show")
	require.Equal(w.t, exitDone, code, errs)
	return out
}

// holds waits until the kernel holds the services at these addresses, and no other.
func (w *watched) holds(addrs ...string) {
	w.t.Helper()
	ok := func() bool {
		out := w.show()
		for _, a := range addrs {
			if !strings.Contains(out, a+":80/tcp") {
				return false
			}
		}
		return strings.Count(out, ":80/tcp") == len(addrs)
	}
	require.Eventually(w.t, ok, 10*time.Second, 20*time.Millisecond, "%v\n%s", addrs, w.log)
}

// logs waits until the program has said something.
func (w *watched) logs(text string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return strings.Contains(w.log.String(), text) },
		10*time.Second, 10*time.Millisecond, "%s\n%s", text, w.log)
}

func one(name, ip string) string { return serviceManifest(name, ip, "", "") }

func TestWatchFollowsFiles(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.write("notes.txt", one("notes", "10.96.0.3"))
	w.write(".c.yaml", one("hidden", "10.96.0.4"))
	w.start()
	w.holds("10.96.0.1", "10.96.0.2")

	w.write("a.yaml", one("a", "10.96.0.11"))
	w.holds("10.96.0.11", "10.96.0.2")
	w.write("c.yml", one("c", "10.96.0.3"))
	w.holds("10.96.0.11", "10.96.0.2", "10.96.0.3")
	require.NoError(t, os.Remove(filepath.Join(w.dir, "b.yaml")))
	w.holds("10.96.0.11", "10.96.0.3")
	require.NoError(t, os.Rename(filepath.Join(w.dir, "c.yml"), filepath.Join(w.dir, "c.bak")))
	w.holds("10.96.0.11")
	elsewhere := filepath.Join(t.TempDir(), "linked")
	require.NoError(t, os.WriteFile(elsewhere, []byte(one("l", "10.96.0.5")), 0o600))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(w.dir, "link.yaml")))
	w.holds("10.96.0.11", "10.96.0.5")
	w.halt()
	w.holds("10.96.0.11", "10.96.0.5")
}

// A file that is written in place is read when its writer has closed it: half of it may look whole.
func TestWatchWaitsForTheWriter(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	whole := one("a", "10.96.0.1") + one("b", "10.96.0.2")
	w.write("a.yaml", whole)
	w.start()
	w.holds("10.96.0.1", "10.96.0.2")

	f, err := os.Create(filepath.Join(w.dir, "a.yaml"))
	require.NoError(t, err)
	_, err = f.WriteString(one("a", "10.96.0.1"))
	require.NoError(t, err)
	w.write("other.yaml", one("o", "10.96.0.3"))
	w.holds("10.96.0.1", "10.96.0.2", "10.96.0.3")
	_, err = f.WriteString(one("b", "10.96.0.22"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	w.holds("10.96.0.1", "10.96.0.22", "10.96.0.3")
	w.halt()
}

func TestWatchKeepsTheServicesOfABrokenFile(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.start()
	w.holds("10.96.0.1", "10.96.0.2")

	w.write("a.yaml", "kind: [")
	w.logs("broken manifest")
	w.write("b.yaml", one("b", "10.96.0.22"))
	w.holds("10.96.0.1", "10.96.0.22")
	w.write("a.yaml", one("a", "nowhere"))
	w.logs("spec.clusterIPs[0]: nowhere")
	w.halt()

	w.start() // a restart knows what the file was when it was whole
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.holds("10.96.0.1", "10.96.0.2")
	w.write("a.yaml", one("a", "10.96.0.11"))
	w.holds("10.96.0.11", "10.96.0.2")
	w.logs("manifest is whole again")
	w.halt()
}

func TestWatchLeavesOutWhatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.write("a.yaml", one("a", "10.96.0.1")+serviceManifest("lc", "10.96.0.2",
		"annotations: {kernlb.io/scheduler: lc}", ""))
	w.start()
	w.holds("10.96.0.1")
	w.logs("service refused")
	w.halt()
}

// Services stay as they are while the directory is away, and are followed when it is back.
func TestWatchSurvivesTheLossOfItsDirectory(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.start()
	w.holds("10.96.0.1")
	away := w.dir + "-away"
	require.NoError(t, os.Rename(w.dir, away))
	w.logs("the directory is gone")
	w.holds("10.96.0.1")
	require.NoError(t, os.WriteFile(filepath.Join(away, "b.yaml"), []byte(one("b", "10.96.0.2")),
		0o600))
	require.NoError(t, os.Rename(away, w.dir))
	w.holds("10.96.0.1", "10.96.0.2")
	w.write("a.yaml", one("a", "10.96.0.11"))
	w.holds("10.96.0.11", "10.96.0.2")
	w.halt()
}

func TestWatchFollowsTheAddressesOfTheNode(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "-nodeport-addresses", "primary")
	w.write("a.yaml", one("a", "10.96.0.1"))
	require.NoError(t, w.ns.Do(func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}})
	}))
	w.start()
	w.holds("10.96.0.1")
	planned := func() string {
		_, out, _ := kernlb(t, w.ns, "plan", "-f", w.dir, "-nodeport-addresses", "primary",
			"-node-ip", "192.0.2.7")
		return out
	}
	require.Contains(t, planned(), "192.0.2.7")
	require.NoError(t, w.ns.Do(func() error {
		link, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 7),
			Mask: net.CIDRMask(24, 32)}}
		return netlink.AddrAdd(link, addr)
	}))
	require.Eventually(t, func() bool { return planned() == "nothing would change\n" },
		10*time.Second, 20*time.Millisecond, "%s", w.log)
	w.halt()
}

// The service manager is told when the kernel holds the services, not before, and of the end.
func TestWatchTellsTheServiceManager(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	w := newWatched(t)
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.start()
	next := func() string {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		b := make([]byte, 4096)
		n, err := conn.Read(b)
		require.NoError(t, err, "%s", w.log)
		return string(b[:n])
	}
	require.Equal(t, "READY=1\nSTATUS=nftables holds the services; 0 refused", next())
	require.Contains(t, w.show(), "10.96.0.1:80/tcp")
	w.halt()
	require.Equal(t, "STOPPING=1", next())
}

func TestWatchWantsADirectory(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	file := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, args := range [][]string{{"-f", file}, {"-f", file + "-none"}, {"-f", "a", "-f", "b"}} {
		code, _, errs := kernlb(t, ns, append([]string{"watch"}, args...)...)
		require.Equal(t, exitInvalid, code, errs)
	}
}

// A directory without services may be one that is not there yet: the kernel stays as it is.
func TestWatchDoesNotRemoveEverything(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.start()
	w.holds("10.96.0.1")
	w.write("a.yaml", "")
	w.logs("a.yaml:1: the file is empty")
	w.write("a.yaml", "# none\n")
	w.logs("the kernel stays as it is")
	w.holds("10.96.0.1")
	b := one("b", "10.96.0.2")
	w.write("b.yaml", strings.Replace(b, "service-name: b", "service-name: x", 1))
	w.holds("10.96.0.2")
	w.logs("there is no Service default/x")
	w.halt()

	require.NoError(t, os.Remove(filepath.Join(w.dir, "b.yaml")))
	w.start()
	w.logs("the kernel stays as it is")
	w.holds("10.96.0.2")
	w.halt()
	w.args = append(w.args, "-allow-empty")
	w.start()
	w.holds()
	w.halt()
}
