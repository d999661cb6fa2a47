package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	. "github.com/kernlb/kernlb/conntrack/internal/cttest"
	"github.com/kernlb/kernlb/dataplane/netnstest"

	. "github.com/kernlb/kernlb/conntrack"
)

func TestWithoutPermission(t *testing.T) {
	t.Parallel()
	_, ns := NewTable(t)
	err := ns.Do(func() error {
		table, err := Open(nil)
		if err != nil {
			return err
		}
		defer table.Close()
		return WithoutCapabilities(func() error {
			_, listErr := CountBy(table.Flows(context.Background(), Filter{}), func(*Flow) int {
				return 0
			})
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
	})
	require.NoError(t, err)
}

func TestNodeAddrs(t *testing.T) {
	t.Parallel()
	cluster := netnstest.Start(t, netnstest.Options{Pods: -1, RemotePods: -1, OutsideClients: -1})
	table := OpenTable(t, cluster.Node.NS)
	got, err := table.NodeAddrs([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"),
		netip.MustParsePrefix("::/0")})
	require.NoError(t, err)
	require.ElementsMatch(t, cluster.NodeAddrs(), got)
	got, err = table.NodeAddrs([]netip.Prefix{netip.MustParsePrefix("192.0.2.11/32")})
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{Addr("192.0.2.11")}, got)
	got, err = table.NodeAddrs(nil)
	require.NoError(t, err)
	require.Empty(t, got)
}
