package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

// watched is a program that watches a directory in a namespace.
type watched struct {
	t       *testing.T
	ns      *netnstest.NS
	dir     string
	args    []string
	log     *lockedBuffer
	process *exec.Cmd // nil if it does not run
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

// watching returns a program that holds the service a.
func watching(t *testing.T, args ...string) *watched {
	t.Helper()
	w := newWatched(t, args...)
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.start()
	w.holds("10.96.0.1")
	return w
}

// String returns the log.
func (w *watched) String() string { return w.log.String() }

func newWatched(t *testing.T, args ...string) *watched {
	t.Helper()
	w := &watched{t: t, ns: nstest.New(t), dir: t.TempDir()}
	w.args = append([]string{"watch", "-f", w.dir, "-copies", t.TempDir()}, args...)
	return w
}

// process starts the program in a namespace. The buffer has all of its output.
func process(t *testing.T, ns *netnstest.NS, args ...string) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	c, out := exec.Command("/proc/self/exe", args...), &lockedBuffer{}
	c.Env = append(os.Environ(), asProgram+"=1")
	c.Stdout, c.Stderr = out, out
	require.NoError(t, ns.Do(c.Start))
	return c, out
}

// start runs the program until halt, or until the test ends.
func (w *watched) start() {
	w.t.Helper()
	w.process, w.log = process(w.t, w.ns, w.args...)
	w.t.Cleanup(w.halt)
}

// halt ends the program with a signal, if it runs.
func (w *watched) halt() {
	if w.process != nil {
		require.NoError(w.t, w.process.Process.Signal(syscall.SIGTERM))
		require.NoError(w.t, w.process.Wait(), "%s", w.log)
	}

	w.process = nil
}

// write puts a file in place like kubectl and configuration management: first under another name.
func (w *watched) write(name, text string) {
	path := filepath.Join(w.t.TempDir(), "new")
	require.NoError(w.t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(w.t, os.Rename(path, filepath.Join(w.dir, name)))
}

func (w *watched) show() string {
	return done(w.t, w.ns, "", "show")
}

// holds waits until the kernel holds services at exactly these addresses.
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

	require.Eventually(w.t, ok, time.Minute, 20*time.Millisecond, "%v\n%s", addrs, w.log)
}

// logs waits until the program has logged a text.
func (w *watched) logs(text string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return strings.Contains(w.log.String(), text) },
		time.Minute, 10*time.Millisecond, "%s\n%s", text, w.log)
}

// notifications returns the socket of a service manager, and a function that waits for the next
// message there.
func notifications(t *testing.T, log fmt.Stringer) (socket string, next func() string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "notify")
	conn := ok(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	t.Cleanup(func() { conn.Close() })
	return socket, func() string {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		b := make([]byte, 4096)
		n, err := conn.Read(b)
		require.NoError(t, err, "%s", log)
		return string(b[:n])
	}
}

func one(name, ip string) string { return serviceManifest(name, ip, "", "") }

func TestWatchFollowsFiles(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.write("lost.yaml", strings.SplitN(one("lost", ""), "---", 3)[2]) // endpoints alone
	w.write("notes.txt", one("notes", "10.96.0.3"))
	w.write(".c.yaml", one("hidden", "10.96.0.4"))

	// A pipe has no end, and a writer may never come.
	require.NoError(t, unix.Mkfifo(filepath.Join(w.dir, "pipe.yaml"), 0o600))
	w.start()
	w.holds("10.96.0.1", "10.96.0.2")
	w.logs("pipe.yaml is no regular file")

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
	require.Equal(t, 1, strings.Count(w.String(), `msg="state warning" service=default/lost`),
		"a warning is logged once, not with each change: %s", w)
}

// A file that is written in place is read when its writer has closed it, because half of it may
// look whole.
func TestWatchWaitsForTheWriter(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	whole := one("a", "10.96.0.1") + one("b", "10.96.0.2")
	w.write("a.yaml", whole)
	w.start()
	w.holds("10.96.0.1", "10.96.0.2")

	f := ok(os.Create(filepath.Join(w.dir, "a.yaml")))(t)
	ok(f.WriteString(one("a", "10.96.0.1")))(t)
	w.write("other.yaml", one("o", "10.96.0.3"))
	w.holds("10.96.0.1", "10.96.0.2", "10.96.0.3")
	ok(f.WriteString(one("b", "10.96.0.22")))(t)
	require.NoError(t, f.Close())
	w.holds("10.96.0.1", "10.96.0.22", "10.96.0.3")

	f = ok(os.Create(filepath.Join(w.dir, "new.yaml")))(t)
	ok(f.WriteString(one("n", "10.96.0.4")))(t)
	time.Sleep(again + 10*quiet)
	w.holds("10.96.0.1", "10.96.0.22", "10.96.0.3")
	require.NoError(t, f.Close())
	w.holds("10.96.0.1", "10.96.0.22", "10.96.0.3", "10.96.0.4")
}

// A file that gets its name when its contents are written is read, although its writer closes it
// under another name, or none.
func TestWatchReadsFilesThatGetAName(t *testing.T) {
	t.Parallel()
	w := watching(t)
	name := func(f *os.File, name string) {
		require.NoError(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()),
			unix.AT_FDCWD, filepath.Join(w.dir, name), unix.AT_SYMLINK_FOLLOW))
	}

	f := ok(os.OpenFile(w.dir, os.O_WRONLY|unix.O_TMPFILE, 0o600))(t)
	ok(f.WriteString(one("b", "10.96.0.2")))(t)
	name(f, "b.yaml")
	require.NoError(t, f.Close())
	w.holds("10.96.0.1", "10.96.0.2")
	f = ok(os.Create(filepath.Join(w.dir, "c.new")))(t)
	ok(f.WriteString(one("c", "10.96.0.3")))(t)
	require.NoError(t, f.Close())
	f = ok(os.Open(f.Name()))(t)
	name(f, "c.yaml")
	require.NoError(t, errors.Join(f.Close(), os.Remove(f.Name())))
	w.holds("10.96.0.1", "10.96.0.2", "10.96.0.3")
}

func TestWatchKeepsTheServicesOfABrokenFile(t *testing.T) {
	t.Parallel()
	w := watching(t)
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.holds("10.96.0.1", "10.96.0.2")

	w.write("a.yaml", "kind: [")
	w.logs("broken manifest")
	w.write("b.yaml", one("b", "10.96.0.22"))
	w.holds("10.96.0.1", "10.96.0.22")
	w.write("a.yaml", one("a", "nowhere"))
	w.logs("spec.clusterIP: nowhere")
	w.halt()

	w.start() // a restart knows the last whole version of the file
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.holds("10.96.0.1", "10.96.0.2")
	w.write("a.yaml", one("a", "10.96.0.11"))
	w.holds("10.96.0.11", "10.96.0.2")
	w.logs("manifest is whole again")
}

// Without a copy, the services of a broken manifest are unknown, so the kernel keeps its own.
func TestWatchKeepsWhatABrokenFileMayHave(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.write("b.yaml", one("b", "10.96.0.2"))
	done(t, w.ns, "", "apply -f", w.dir)
	w.write("a.yaml", "kind: [")
	w.start()
	w.logs("broken manifest: no whole version of it is known")
	w.logs("the kernel stays as it is until the manifest is whole or removed")
	w.logs("services=[default/a]")
	w.holds("10.96.0.1", "10.96.0.2")
	w.write("b.yaml", one("b", "10.96.0.22"))
	w.write("a.yaml", one("a", "10.96.0.11"))
	w.holds("10.96.0.11", "10.96.0.22")
	w.write("c.yaml", "kind: [")
	w.logs("broken manifest: no whole version of it is known\" file=c.yaml")
	require.NoError(t, os.Remove(filepath.Join(w.dir, "a.yaml")))
	w.holds("10.96.0.22") // from then on, the program knows what it removes
	w.halt()
	w.logs("stopped; the kernel stays as it is")
}

// Programs that write into the directory all the time delay neither manifests nor the end.
func TestChangesAreReadAfterASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := dataplane.New(memory.New(nil), nil)
		busy, dir := make(chan changes), t.TempDir()
		w := &watcher{program: &program{}, log: slog.New(slog.DiscardHandler), dir: dir,
			files:  &dirFollower{changes: busy, dir: ok(os.Stat(dir))(t)},
			broken: map[string]string{},
			unkept: map[string][]byte{},
			set:    manifest.NewSet(nil), copies: &copies{},
			give: func(s servicemodel.State) { e.Set(s) }}
		ctx, stop := context.WithCancel(t.Context())
		var writer sync.WaitGroup
		defer writer.Wait()
		defer stop()
		writer.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(quiet / 2)
				select {
				case busy <- changes{"a.yaml": true}:
				case <-ctx.Done():
				}
			}
		})

		require.NoError(t, os.WriteFile(filepath.Join(w.dir, "a.yaml"), []byte(one("a",
			"10.96.0.1")), 0o600))
		ended := make(chan error)
		go func() { ended <- w.follow(ctx, e) }()
		time.Sleep(patience + 2*quiet)
		require.Equal(t, 1, e.Status().State.Len())
		stop()
		start := time.Now()
		require.NoError(t, <-ended)
		require.Zero(t, time.Since(start))
	})
}

// SIGHUP does not end a program that has not begun to follow its files. It reads them again then.
func TestSIGHUPDuringTheStart(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "-listen", "127.0.0.1:0")
	w.write("a.yaml", one("a", "10.96.0.1"))
	b := ok(nftables.New(&nftables.Config{NetNS: w.ns.NetNS()}))(t)
	defer b.Close()
	unlock := ok(b.(backends.Locker).Lock(t.Context()))(t) // the program waits for its turn
	w.start()
	w.logs("listening")
	require.NoError(t, w.process.Process.Signal(syscall.SIGHUP))
	time.Sleep(10 * quiet)
	unlock()
	w.logs("msg=applied")
}

// Services stay while the directory is away, and are followed again when it is back.
func TestWatchSurvivesTheLossOfItsDirectory(t *testing.T) {
	t.Parallel()
	w := watching(t)
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
}

// A symbolic link to the directory may be changed to another one.
func TestWatchFollowsALinkToItsDirectory(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	next, link := t.TempDir(), w.dir+"-link"
	require.NoError(t, os.Symlink(w.dir, link))
	w.args[2] = link
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.start()
	w.holds("10.96.0.1")
	w.dir = next
	w.write("b.yaml", one("b", "10.96.0.2"))
	require.NoError(t, os.Symlink(next, link+"-new"))
	require.NoError(t, os.Rename(link+"-new", link))
	w.holds("10.96.0.2")
	w.write("b.yaml", one("b", "10.96.0.3"))
	w.holds("10.96.0.3")
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
		return done(t, w.ns, "", "plan -f "+w.dir+" -nodeport-addresses primary -node-ip 192.0.2.7")
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
		time.Minute, 20*time.Millisecond, "%s", w.log)
}

// The service manager learns when the kernel holds the services, and not earlier. It learns that
// the program is alive, even without the directory, and it learns of the end.
func TestWatchTellsTheServiceManager(t *testing.T) {
	w := newWatched(t)
	socket, next := notifications(t, w)
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "500000")
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.start()
	const alive = "WATCHDOG=1"
	is := func(want string) {
		got := next()
		for ; got == alive && want != alive; got = next() {
		}
		require.Equal(t, want, got)
	}

	is("READY=1\nSTATUS=nftables holds the services; 0 refused")
	require.Contains(t, w.show(), "10.96.0.1:80/tcp")
	is(alive)
	require.NoError(t, os.Rename(w.dir, w.dir+"-away"))
	w.logs("the directory is gone")
	for range 4 { // messages from before are read as well
		is(alive)
	}
	w.halt()
	is("STOPPING=1")
}

func TestWatchWantsADirectory(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	file := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for args, want := range map[string]string{
		"-f " + file:           "watch takes a directory: -f " + file + ": not a directory",
		"-f " + file + "-none": "watch takes a directory: stat " + file + "-none: no such file",
		"-f a -f b":            "watch takes one -f, a directory",
		"-f -":                 "watch takes one -f, a directory",
	} {
		fails(t, ns, "", exitInvalid, want, "watch "+args)
	}
}

// A directory without services may not be mounted yet, so the kernel stays as it is.
func TestWatchDoesNotRemoveEverything(t *testing.T) {
	t.Parallel()
	w := watching(t)
	w.write("a.yaml", "")
	w.logs("a.yaml:1: the file holds no object")
	require.NoError(t, os.Remove(filepath.Join(w.dir, "a.yaml")))
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
}
