package docs_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/dataplane/nodeaddrs"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// A namespace that is gone is no missing module: a CNI plugin meets it every day.
func TestANamespaceThatIsGoneIsNamed(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(fd int, path string) error{
		"nftables": func(fd int, path string) error {
			return of(nftables.New(&nftables.Config{NetNS: fd, NetNSPath: path}))
		},
		"iptables": func(fd int, path string) error {
			return of(iptables.New(&iptables.Config{NetNS: fd, NetNSPath: path}))
		},
		"ipvs": func(fd int, path string) error {
			return of(ipvs.New(&ipvs.Config{NetNS: fd, NetNSPath: path}))
		},
		"conntrack": func(fd int, path string) error {
			return of(conntrack.Open(&conntrack.Config{NetNS: fd, NetNSPath: path}))
		},
		"counters": func(fd int, path string) error {
			return of(counters.Open(&counters.Config{NetNS: fd, NetNSPath: path}))
		},
		"hooks": func(fd int, path string) error {
			return of(hooks.Read(t.Context(), &hooks.Config{NetNS: fd, NetNSPath: path}, nil))
		},
		"kubeproxy": func(fd int, path string) error {
			return of(kubeproxy.Find(t.Context(), &kubeproxy.Config{NetNS: fd, NetNSPath: path}))
		},
		"livetrace": func(fd int, path string) error {
			return of(livetrace.Open(t.Context(), &livetrace.Config{NetNS: fd, NetNSPath: path,
				Filter: livetrace.Filter{Protocol: servicemodel.TCP,
					Src: netip.MustParseAddr("10.0.0.1"),
					Dst: netip.MustParseAddrPort("10.0.0.2:80")}}))
		},
		"nodeaddrs": func(fd int, path string) error {
			return of(nodeaddrs.New(&nodeaddrs.Config{NetNS: fd, NetNSPath: path}))
		},
	} {
		gone := open(0, "/run/netns/nosuch")
		require.ErrorIs(t, gone, fs.ErrNotExist, name)
		require.ErrorContains(t, gone, "NetNSPath: open /run/netns/nosuch", name)
		wrong := open(99999, "")
		require.ErrorIs(t, wrong, unix.EBADF, name)
		require.ErrorContains(t, wrong, "NetNS: ", name)
		for _, err := range []error{gone, wrong} {
			for _, other := range []error{kernelerr.ErrMissingModule, kernelerr.ErrKernelTooOld,
				kernelerr.ErrNoPermission} {
				require.False(t, errors.Is(err, other), "%s: %v", name, err)
			}
		}
	}
}

// of returns the error of a call.
func of[T any](_ T, err error) error { return err }
