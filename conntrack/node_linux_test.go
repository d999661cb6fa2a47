package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/netnstest"
)

func TestWithoutPermission(t *testing.T) {
	t.Parallel()
	_, ns := newTable(t)
	err := ns.Do(func() error {
		table, err := Open(nil)
		if err != nil {
			return err
		}
		defer table.Close()
		return withoutCapabilities(func() error {
			_, listErr := CountBy(table.Flows(context.Background(), Filter{}), func(*Flow) int {
				return 0
			})
			_, deleteErr := table.Delete(context.Background(),
				All(flow(UDP, client, "10.96.0.10:53", "", "")))
			if !errors.Is(listErr, ErrPermission) || !errors.Is(deleteErr, ErrPermission) {
				return fmt.Errorf("want two permission errors, got %w and %w", listErr, deleteErr)
			}
			return nil
		})
	})
	require.NoError(t, err)
}

// withoutCapabilities runs f on the calling thread without effective capabilities.
func withoutCapabilities(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var now [2]unix.CapUserData
	if err := unix.Capget(&header, &now[0]); err != nil {
		return err
	}
	none := now
	none[0].Effective, none[1].Effective = 0, 0
	if err := unix.Capset(&header, &none[0]); err != nil {
		return err
	}
	return errors.Join(f(), unix.Capset(&header, &now[0]))
}

func TestTuningOfANamespace(t *testing.T) {
	t.Parallel()
	table, ns := newTable(t)
	want := KubeProxyTuning()
	want.UDP, want.TCPBeLiberal, want.MaxPerCore, want.Min = 45*time.Second, true, 1, 1<<30
	p, err := table.PlanTuning(context.Background(), want)
	require.NoError(t, err)
	require.Contains(t, p.String(), "nf_conntrack_udp_timeout: 30 -> 45")

	err = table.ApplyTuning(p)
	require.ErrorIs(t, err, ErrGlobalSetting, "the maximum belongs to the machine")
	require.ErrorContains(t, err, "nf_conntrack_max")
	for key, value := range map[string]string{
		"nf_conntrack_udp_timeout": "45", "nf_conntrack_tcp_be_liberal": "1",
		"nf_conntrack_tcp_timeout_established": "86400",
		"nf_conntrack_tcp_timeout_close_wait":  "3600",
	} {
		got, err := ns.Sysctl("net/netfilter/" + key)
		require.NoError(t, err)
		require.Equal(t, value, got, key)
	}
	want.MaxPerCore = 0
	p, err = table.PlanTuning(context.Background(), want)
	require.NoError(t, err)
	require.True(t, p.Empty(), p.String())
	require.NoError(t, table.ApplyTuning(p))

	other, _ := newTable(t)
	p, err = other.PlanTuning(context.Background(), want)
	require.NoError(t, err)
	require.Contains(t, p.String(), "nf_conntrack_udp_timeout: 30 -> 45",
		"other namespaces are as they were")
}

func TestNodeAddrs(t *testing.T) {
	t.Parallel()
	cluster := netnstest.Start(t, netnstest.Options{Pods: -1, RemotePods: -1, OutsideClients: -1})
	table := openIn(t, cluster.Node.NS)
	got, err := table.NodeAddrs([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"),
		netip.MustParsePrefix("::/0")})
	require.NoError(t, err)
	require.ElementsMatch(t, cluster.NodeAddrs(), got)
	got, err = table.NodeAddrs([]netip.Prefix{netip.MustParsePrefix("192.0.2.11/32")})
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{addr("192.0.2.11")}, got)
	got, err = table.NodeAddrs(nil)
	require.NoError(t, err)
	require.Empty(t, got)
}
