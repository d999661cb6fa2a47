package ipvs

import (
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// probeIn probes the kernel in a new namespace, on a thread without some capabilities, and returns
// the links that the namespace then has.
func probeIn(t *testing.T, without ...uint) (links []string, err error) {
	t.Helper()
	netnstest.Require(t)
	ns := nstest.New(t)
	probe := func() error { return Candidate(&Config{NetNS: ns.NetNS()}).Probe(t.Context()) }
	if len(without) == 0 {
		err = probe()
	} else {
		err = dataplanetest.WithoutCapabilities(probe, without...)
	}

	require.NoError(t, ns.Do(func() error {
		interfaces, err := net.Interfaces()
		for _, i := range interfaces {
			links = append(links, i.Name)
		}
		return err
	}))

	return links, err
}

// needIPVS skips a test on a kernel without IPVS. In the virtual machine, the test then fails.
func needIPVS(t *testing.T) {
	t.Helper()
	if _, err := probeIn(t); err != nil && os.Getenv("KERNLB_VM") == "" {
		t.Skip(err)
	}
}

func TestKernelIsProbedWithoutATrace(t *testing.T) {
	links, err := probeIn(t)
	require.Equal(t, []string{"lo"}, links)
	if os.Getenv("KERNLB_VM") != "" {
		require.NoError(t, err)
	} else if err != nil {
		require.NotContains(t, err.Error(), "\n", "one sentence")
	}
}

// A probe of a kernel that has everything leaves it unchanged.
func TestProbesChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.state()
	b := r.backend()
	require.NoError(t, b.probe(t.Context()))
	require.NoError(t, b.Close())
	require.Equal(t, before, r.state())
	for name := range rigSysctls {
		require.Equal(t, "0", r.sysctl(name), name)
	}
}

func TestKernelRefusesWhoMayNot(t *testing.T) {
	needIPVS(t)
	_, err := probeIn(t, unix.CAP_NET_ADMIN)
	require.ErrorIs(t, err, kernelerr.ErrNoPermission)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorContains(t, err, "CAP_NET_ADMIN in the initial user namespace")
}

// TestKernelThatDoesNotLoadItByItself unloads ip_vs. A kernel before 5.16 does not load ip_vs for a
// process without CAP_SYS_MODULE.
func TestKernelThatDoesNotLoadItByItself(t *testing.T) {
	if os.Getenv("KERNLB_VM") == "" {
		t.Skip("unloads a module: needs a virtual machine, see internal/test/vm")
	}
	_ = exec.CommandContext(t.Context(), "modprobe", "-r", "ip_vs").Run()
	if _, err := os.Stat("/sys/module/ip_vs"); err == nil {
		t.Log("ip_vs is in use, and stays")
		return
	}

	_, err := probeIn(t, unix.CAP_SYS_MODULE)
	if strings.HasPrefix(os.Getenv("KERNLB_KERNEL"), "5.10") {
		require.ErrorIs(t, err, kernelerr.ErrMissingModule)
		require.ErrorContains(t, err, "load module ip_vs")
	} else {
		require.NoError(t, err)
	}

	_, err = probeIn(t)
	require.NoError(t, err, "with all capabilities")
}
