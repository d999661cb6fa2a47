//go:build linux

// Package guesttest is run inside the VM by the tests of package vmtest: it checks
// what the runner promises to programs. It is below testdata so that "go test
// ./..." on the host does not run it.
package guesttest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/mdlayher/genetlink"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func release(t *testing.T) string {
	t.Helper()
	var uts unix.Utsname
	require.NoError(t, unix.Uname(&uts))
	return unix.ByteSliceToString(uts.Release[:])
}

func TestTheKernelIsTheOneAskedFor(t *testing.T) {
	require.Equal(t, "1", os.Getenv("KERNLB_VM"))
	series := strings.TrimSuffix(os.Getenv("KERNLB_KERNEL"), "x")
	require.NotEmpty(t, series)
	require.True(t, strings.HasPrefix(release(t), strings.TrimSuffix(series, ".")+"."),
		"%s is no %s", release(t), series)
}

func TestTestdataAndWorkingDirectory(t *testing.T) {
	text, err := os.ReadFile("testdata/greeting.txt")
	require.NoError(t, err)
	require.Equal(t, "hello from testdata\n", string(text))
	dir, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, "/src/testdata/guesttest", dir)
}

func TestIPVSLoadsItselfOnFirstUse(t *testing.T) {
	conn, err := genetlink.Dial(nil)
	require.NoError(t, err)
	defer conn.Close()
	family, err := conn.GetFamily("IPVS")
	require.NoError(t, err, "the kernel asks /sbin/modprobe for net-pf-16-proto-16-family-IPVS")
	require.NotZero(t, family.ID)
	modules, err := os.ReadFile("/proc/modules")
	require.NoError(t, err)
	require.Contains(t, string(modules), "ip_vs ")
}

func TestEverySchedulerOfIPVSCanBeLoaded(t *testing.T) {
	for _, name := range strings.Fields("rr wrr lc wlc lblc lblcr dh sh mh sed nq fo ovf") {
		out, err := exec.Command("modprobe", "ip_vs_"+name).CombinedOutput()
		require.NoError(t, err, "ip_vs_%s: %s", name, out)
	}
}

func TestLinksOfTheKindsThatFixturesMake(t *testing.T) {
	attrs := netlink.LinkAttrs{Name: "t0"}
	for _, link := range []netlink.Link{
		&netlink.Dummy{LinkAttrs: attrs},
		&netlink.Veth{LinkAttrs: attrs, PeerName: "t1"},
		&netlink.Bridge{LinkAttrs: attrs},
		&netlink.Iptun{LinkAttrs: attrs, Local: net.IPv4(127, 0, 0, 1),
			Remote: net.IPv4(127, 0, 0, 2)},
		&netlink.Ip6tnl{LinkAttrs: attrs, Local: net.IPv6loopback,
			Remote: net.ParseIP("2001:db8::1")},
	} {
		require.NoError(t, netlink.LinkAdd(link), link.Type())
		found, err := netlink.LinkByName("t0")
		require.NoError(t, err, link.Type())
		require.Equal(t, link.Type(), found.Type())
		require.NoError(t, netlink.LinkSetUp(found), link.Type())
		require.NoError(t, netlink.LinkDel(found), link.Type())
	}
}

func TestLoopbackIsUp(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, l.Close())
	}
}

func TestNftables(t *testing.T) {
	conn, err := nftables.New()
	require.NoError(t, err)
	table := conn.AddTable(&nftables.Table{Name: "vmtest", Family: nftables.TableFamilyINet})
	conn.AddChain(&nftables.Chain{
		Name: "c", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	require.NoError(t, conn.Flush())
	tables, err := conn.ListTables()
	require.NoError(t, err)
	require.Len(t, tables, 1)
	conn.DelTable(table)
	require.NoError(t, conn.Flush())
}

func TestSCTPSockets(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
}

// TestHostTools runs the commands in GUESTTEST_TOOLS, one on each line. They are the host's
// programs, not busybox's.
func TestHostTools(t *testing.T) {
	commands := os.Getenv("GUESTTEST_TOOLS")
	if commands == "" {
		t.Skip("no tools of the host in this image: GUESTTEST_TOOLS is empty")
	}
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
		path, err := exec.LookPath(words[0])
		require.NoError(t, err)
		real, err := filepath.EvalSymlinks(path)
		require.NoError(t, err)
		require.NotEqual(t, "/usr/bin/busybox", real, "%s", words[0])
		t.Logf("%s: %s", strings.TrimSpace(line), out)
	}
}
