package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	. "github.com/kernlb/kernlb/internal/test/cttest"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/test/nstest"

	. "github.com/kernlb/kernlb/conntrack"
)

func TestWithoutPermission(t *testing.T) {
	t.Parallel()
	_, ns := NewTable(t)
	require.NoError(t, ns.Do(func() error {
		table, err := Open(nil)
		if err != nil {
			return err
		}
		defer table.Close()
		return dataplanetest.WithoutCapabilities(func() error {
			var listErr error
			for _, err := range table.Flows(context.Background(), Filter{}) {
				listErr = err
			}
			_, deleteErr := table.Delete(context.Background(),
				All(NewFlow(UDP, Client, "10.96.0.10:53", "", "")))
			if !errors.Is(listErr, kernelerr.ErrNoPermission) ||
				!errors.Is(deleteErr, kernelerr.ErrNoPermission) {
				return fmt.Errorf("want two permission errors, got %w and %w", listErr, deleteErr)
			}

			var refused *kernelerr.OpError
			if !errors.As(listErr, &refused) || refused.Errno != unix.EPERM {
				return fmt.Errorf("want what the kernel refused, got %w", listErr)
			}
			return nil
		})
	}))
}

// Without CAP_NET_RAW no end can be reset. All stale flows are deleted nevertheless.
func TestCleanWithoutRawSockets(t *testing.T) {
	t.Parallel()
	table, ns := NewTable(t)
	for _, command := range []string{"link add name v0 type veth peer name v1",
		"address add 10.0.0.2/8 dev v0", "link set v0 up", "link set v1 up"} {
		nstest.Run(t, ns, "ip "+command)
	}

	var flows []Flow
	for i := range 2000 {
		f := NewFlow(TCP, "10.1.0.1:1", "10.96.0.10:80", "10.244.0.5:8080", "")
		f.Original.Src = WithPort(f.Original.Src, i)
		f.Reply.Dst, f.TCP = f.Original.Src, TCPEstablished
		flows = append(flows, f)
	}

	Create(t, table, flows...)
	m := matcherOf(t, Change{Frontends: []Frontend{{Key: Key("10.96.0.10:80", TCP)}}})
	require.NoError(t, dataplanetest.WithoutCapabilities(func() error {
		if err := unix.Setns(ns.Fd(), unix.CLONE_NEWNET); err != nil {
			return err
		}
		own, err := Open(nil)
		if err != nil {
			return err
		}
		defer own.Close()
		r, err := own.Clean(t.Context(), m, CleanOptions{})
		if !errors.Is(err, kernelerr.ErrNoPermission) || r.Deleted != len(flows) || r.Reset != 0 {
			return fmt.Errorf("want no permission after all deletions, got %+v: %w", r, err)
		}
		return nil
	}, unix.CAP_NET_RAW))
}

func TestNodeAddrs(t *testing.T) {
	t.Parallel()
	cluster := netnstest.Start(t, netnstest.Options{Pods: -1, RemotePods: -1, OutsideClients: -1})
	table := OpenTable(t, cluster.Node.NS)
	got := OK(table.NodeAddrs([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"),
		netip.MustParsePrefix("::/0")}))(t)
	require.ElementsMatch(t, cluster.NodeAddrs(), got)
	got = OK(table.NodeAddrs([]netip.Prefix{netip.MustParsePrefix("192.0.2.11/32")}))(t)
	require.Equal(t, []netip.Addr{Addr("192.0.2.11")}, got)
	got = OK(table.NodeAddrs(nil))(t)
	require.Empty(t, got)
}
