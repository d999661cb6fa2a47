package nftables

import (
	"io/fs"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/dataplanetest"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestNewSaysThatThePermissionIsMissing(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	err := dataplanetest.WithoutCapabilities(func() error {
		b, err := New(nil)
		if err == nil {
			b.Close()
		}
		return err
	})
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorIs(t, err, dataplane.ErrNoPermission)
	require.ErrorContains(t, err, "nftables: open: no permission: it takes CAP_NET_ADMIN")
	var refused *dataplane.OpError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, unix.EPERM, refused.Errno)
	require.NotEmpty(t, refused.Op+refused.Object)
}

// A program that gives up its capabilities, or loses them, is told so by each call.
func TestApplySaysThatThePermissionIsMissing(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	ns, err := netnstest.NewNS("permission")
	require.NoError(t, err)
	t.Cleanup(func() { ns.Close() })
	b, err := New(&Config{NetNS: ns.Fd()})
	require.NoError(t, err)
	defer b.Close()
	e := dataplane.New(b, nil)
	one := servicemodel.State{}.WithService(&servicemodel.Service{
		Name:       servicemodel.Name{Namespace: "default", Name: "web"},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
	})
	for name, call := range map[string]func() error{
		"apply":   func() error { _, err := e.Apply(t.Context(), one); return err },
		"observe": func() error { _, err := e.Observe(t.Context()); return err },
		"cleanup": func() error { _, err := e.Cleanup(t.Context()); return err },
		"probe":   func() error { return probe(t.Context(), nil) },
	} {
		err := dataplanetest.WithoutCapabilities(call)
		require.ErrorIs(t, err, dataplane.ErrNoPermission, name)
		require.ErrorIs(t, err, fs.ErrPermission, name)
	}
	_, err = e.Apply(t.Context(), one)
	require.NoError(t, err)
}
