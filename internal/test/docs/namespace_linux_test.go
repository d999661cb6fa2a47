package docs_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/nodeaddrs"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// A missing namespace is not reported as a missing module: for a CNI plugin, it is an everyday
// case.
func TestANamespaceThatIsGoneIsNamed(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(ns netns.Namespace) error{
		"nftables": func(ns netns.Namespace) error {
			return of(nftables.New(&nftables.Config{NetNS: ns}))
		},
		"iptables": func(ns netns.Namespace) error {
			return of(iptables.New(&iptables.Config{NetNS: ns}))
		},
		"ipvs": func(ns netns.Namespace) error {
			return of(ipvs.New(&ipvs.Config{NetNS: ns}))
		},
		"conntrack": func(ns netns.Namespace) error {
			return of(conntrack.Open(&conntrack.Config{NetNS: ns}))
		},
		"counters": func(ns netns.Namespace) error {
			return of(counters.Open(&counters.Config{NetNS: ns}))
		},
		"hooks": func(ns netns.Namespace) error {
			return of(hooks.Read(t.Context(), &hooks.Config{NetNS: ns}, nil))
		},
		"kubeproxy": func(ns netns.Namespace) error {
			return of(kubeproxy.Find(t.Context(), &kubeproxy.Config{NetNS: ns}))
		},
		"livetrace": func(ns netns.Namespace) error {
			return of(livetrace.Open(t.Context(), &livetrace.Config{NetNS: ns,
				Filter: livetrace.Filter{Protocol: servicemodel.TCP,
					Src: netip.MustParseAddr("10.0.0.1"),
					Dst: netip.MustParseAddrPort("10.0.0.2:80")}}))
		},
		"nodeaddrs": func(ns netns.Namespace) error {
			return of(nodeaddrs.New(&nodeaddrs.Config{NetNS: ns}))
		},
	} {
		gone := open("/run/netns/nosuch")
		require.ErrorIs(t, gone, fs.ErrNotExist, name)
		require.ErrorContains(t, gone, "network namespace: open /run/netns/nosuch", name)
		for _, other := range []error{kernelerr.ErrMissingModule, kernelerr.ErrKernelTooOld,
			kernelerr.ErrNoPermission} {
			require.False(t, errors.Is(gone, other), "%s: %v", name, gone)
		}
	}
}

// of returns the error of a call.
func of[T any](_ T, err error) error { return err }
