package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	. "github.com/kernlb/kernlb/internal/test/cttest"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"

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
			if !errors.Is(listErr, ErrNoPermission) || !errors.Is(deleteErr, ErrNoPermission) {
				return fmt.Errorf("want two permission errors, got %w and %w", listErr, deleteErr)
			}
			var refused *OpError
			if !errors.As(listErr, &refused) || refused.Errno != unix.EPERM {
				return fmt.Errorf("want what the kernel refused, got %w", listErr)
			}
			return nil
		})
	}))
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
