package rendering_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// candidates are the candidates that write nf_tables, in a namespace; "" means the calling
// thread's.
func candidates(ns netns.Namespace) []backends.Candidate {
	return []backends.Candidate{nftables.Candidate(&nftables.Config{NetNS: ns}),
		iptables.Candidate(&iptables.Config{NetNS: ns})}
}

func TestProbingLeavesNothingBehind(t *testing.T) {
	ns := nstest.New(t)
	generation := func() uint32 {
		c := must.OK(rawnl.Dial(&rawnl.Config{NetNS: ns.NetNS()}))(t)
		defer c.Close()
		g := must.OK(c.GenID(t.Context()))(t)
		return g.ID
	}

	before := generation()
	var found []dataplane.Support
	require.NoError(t, ns.Do(func() error {
		found = dataplane.Probe(t.Context(), candidates("")...)
		return nil
	}))

	require.Equal(t, []dataplane.Support{{Backend: "nftables"}, {Backend: "iptables"}}, found)
	require.Equal(t, before, generation(), "the ruleset's generation")
	for _, c := range candidates(ns.NetNS()) {
		b := must.OK(c.Open())(t)
		defer b.Close()
		o := must.OK(b.Observe(t.Context(), nil))(t)
		require.Zero(t, o.Table.Len())
		require.Empty(t, o.Drift)
	}
}

func TestProbingBesideAnInstanceOfTheSameName(t *testing.T) {
	ns := nstest.New(t)
	for _, command := range []string{
		"nft add table ip kernlb.probe", "nft add chain ip kernlb.probe dispatch",
		"nft add table ip6 kernlb.probe",
		"iptables-nft -t nat -A PREROUTING -p tcp --dport 1 -j ACCEPT",
		"iptables-nft -A INPUT -p tcp --dport 1 -j DROP",
	} {
		nstest.Run(t, ns, command)
	}

	for _, s := range dataplane.Probe(t.Context(), candidates(ns.NetNS())...) {
		require.NoError(t, s.Err, s.Backend)
	}
}

func TestWithoutPermission(t *testing.T) {
	ns := nstest.New(t)
	require.NoError(t, dataplanetest.WithoutCapabilities(func() error {
		for _, s := range dataplane.Probe(t.Context(), candidates(ns.NetNS())...) {
			var refused *kernelerr.OpError
			if !errors.Is(s.Err, kernelerr.ErrNoPermission) ||
				!errors.Is(s.Err, fs.ErrPermission) || !errors.As(s.Err, &refused) ||
				!strings.Contains(s.String(), "CAP_NET_ADMIN") {
				t.Error(s)
			}
		}

		return nil
	}, unix.CAP_NET_ADMIN))
}

// TestMissingModules removes modules from the kernel of a virtual machine, one after another.
func TestMissingModules(t *testing.T) {
	if os.Getenv("KERNLB_VM") == "" {
		t.Skip("takes modules away from the kernel: needs a virtual machine, see internal/test/vm")
	}
	for _, tt := range []struct {
		module  string
		backend int
		want    string
	}{
		{"nf_tables", 0, "missing module nf_tables"}, // first, while it is unused
		{"nft_numgen", 0, "missing module nft_numgen"},
		{"nft_fib_ipv6", 0, ""}, // services of IPv6 are refused, but not the backend
		{"nft_reject_ipv4", 0, ""},
		{"nft_masq", 0, "missing module nft_masq"},
		{"nft_chain_nat", 0, "missing module nft_chain_nat"},
		{"xt_statistic", 1, "the kernel has no statistic revision 0 for ip"},
		{"nft_compat", 1, "missing module nft_compat"},
	} {
		t.Run(tt.module, func(t *testing.T) {
			hide(t, tt.module)
			ns := nstest.New(t)
			c := candidates(ns.NetNS())[tt.backend]
			if tt.module == "nf_tables" { // then a backend has nothing to clean up
				_, err := c.Open()
				require.ErrorIs(t, err, kernelerr.ErrMissingModule)
			}

			err := c.Probe(t.Context())
			if tt.want == "" {
				require.NoError(t, err)
				return
			}

			require.ErrorIs(t, err, kernelerr.ErrMissingModule)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// hide removes a module until the test ends.
func hide(t *testing.T, module string) {
	t.Helper()

	// also fails if the module was removed but a module that it used was not
	_ = exec.CommandContext(t.Context(), "modprobe", "-r", module).Run()
	if _, err := os.Stat("/sys/module/" + module); err == nil {
		t.Skip("the module " + module + " is in use or built in")
	}
	var u unix.Utsname
	require.NoError(t, unix.Uname(&u))
	found := ""
	require.NoError(t, filepath.WalkDir("/lib/modules/"+unix.ByteSliceToString(u.Release[:]),
		func(path string, d fs.DirEntry, err error) error {
			if name, _, _ := strings.Cut(d.Name(), "."); err == nil &&
				strings.ReplaceAll(name, "-", "_") == module {
				found = path
			}

			return err
		}))

	require.NotEmpty(t, found, "the module's file")
	require.NoError(t, os.Rename(found, found+".hidden"))
	t.Cleanup(func() { require.NoError(t, os.Rename(found+".hidden", found)) })
}
