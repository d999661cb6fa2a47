package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// status prints what the checks of the node found, and its exit code says so. docs/debugging.md has
// the output.
func TestStatusPrintsWhatLosesConnections(t *testing.T) {
	t.Parallel()
	c := netnstest.Start(t, netnstest.Options{})
	w := newWatched(t, "-listen", "127.0.0.1:0")
	w.ns = c.Node.NS
	w.write("web.yaml", one("web", "10.96.0.10"))
	w.start()
	w.logs("listening")
	status := func(code int) (said string) {
		t.Helper()
		require.Eventually(t, func() bool { // until the program has applied, or checks again
			p, out := process(t, w.ns, "status", "-page", "http://"+w.address())
			_ = p.Wait()
			said = out.String()
			return p.ProcessState.ExitCode() == code
		}, time.Minute, 100*time.Millisecond, "%s", w.log)

		return said
	}

	require.Contains(t, status(exitDone), "this node: no fault in its settings and rules")

	require.NoError(t, c.Node.NS.SetSysctl("net/ipv4/ip_forward", "0"))
	nstest.NFT(t, c.Node.NS, `table inet firewall { chain forward {
		type filter hook forward priority 0
		tcp dport 8080 drop comment "no web"
	}; }`)
	said := status(exitNode)
	require.Contains(t, said, "error: forwarding: ")
	if _, err := os.Stat("../../docs"); err == nil {
		golden.Block(t, "../../docs/debugging.md", "status", "$ kernlb status\n"+said)
	}
}

// status says that another program keeps undoing repairs, also at a moment at which the kernel
// holds what is wanted, and names that program.
func TestStatusNamesWhoUndoesRepairs(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "-listen", "127.0.0.1:0")
	w.write("web.yaml", one("web", "10.96.0.10"))
	w.start()
	w.logs("listening")
	require.Eventually(t, func() bool {
		fight := exec.Command("nft", "delete", "table", "ip", "kernlb")
		if err := w.ns.Do(fight.Start); err == nil {
			_ = fight.Wait() // it fails until the table is there again
		}
		p, out := process(t, w.ns, "status", "-page", "http://"+w.address())
		_ = p.Wait() // its exit code is compared
		return p.ProcessState.ExitCode() == exitNode &&
			strings.Contains(out.String(), "error: repairs: nft keeps undoing repairs: ")
	}, time.Minute, 50*time.Millisecond, "%s", w.log)
}

// The page can be at a socket. One that a killed program left is replaced, one in use is not.
func TestStatusAsksASocket(t *testing.T) {
	t.Parallel()
	socket := t.TempDir() + "/page"
	w := newWatched(t, "-listen", "unix:"+socket)
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.start()
	w.logs("msg=listening address=" + socket)
	require.NoError(t, w.process.Process.Kill())
	_ = w.process.Wait() // it was killed
	require.FileExists(t, socket)
	w.start()
	w.logs("msg=listening address=" + socket)
	require.Eventually(t, func() bool {
		p, out := process(t, w.ns, "status", "-page", "unix:"+socket)
		_ = p.Wait() // what it printed says more
		return strings.Contains(out.String(), "in sync: the kernel holds what is wanted")
	}, time.Minute, 100*time.Millisecond, "%s", w.log)

	p, out := process(t, w.ns, w.args...)
	require.Error(t, p.Wait())
	require.Contains(t, out.String(), "another process listens at "+socket)
}
