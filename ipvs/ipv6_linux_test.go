package ipvs

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

func (r *rig) disableIPv6(value string) {
	r.setSysctl("net/ipv6/conf/all/disable_ipv6", value)
	r.setSysctl("net/ipv6/conf/default/disable_ipv6", value)
}

// perFamily is a state of one service in each family: "web" and "six".
func perFamily(endpoint string) servicemodel.State {
	s := rigState([]string{endpoint}, func(s *servicemodel.Service) {
		s.ClusterIPs, s.ExternalIPs = s.ClusterIPs[:1], nil
	})
	six := goldenService(func(s *servicemodel.Service) {
		s.Name.Name, s.Ports[0].NodePort = "six", 0
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr("fd00:10:96::66")}
	})
	return s.WithService(six).WithEndpoints(six.Name, goldenEndpoints("fd00:10:244::1"))
}

// If IPv6 is disabled, IPv4 services work, and IPv6 services are refused with the reason. When IPv6
// is enabled, they are added.
func TestIPv6IsDisabled(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{false, true} {
		r := newRig(t)
		e := r.engine()
		if running {
			r.apply(e, perFamily("10.244.1.1"))
			require.Contains(t, strings.Join(r.servers(), "\n"), "[fd00:10:96::66]:80")
		}
		r.disableIPv6("1")
		for _, endpoint := range []string{"10.244.1.2", "10.244.1.3"} {
			res := applied(t, e, perFamily(endpoint))
			require.Len(t, res.Refused, 1)
			require.Equal(t, servicemodel.IPv6, res.Refused[0].Family)
			require.ErrorIs(t, res.Refused[0].Err, dataplane.ErrUnsupported)
			require.ErrorContains(t, res.Refused[0].Err, "IPv6 is disabled on this node")
			servers := strings.Join(r.servers(), "\n")
			require.Contains(t, servers, endpoint)
			require.NotContains(t, servers, "fd00:10:96::66")
		}
		r.disableIPv6("0")
		r.apply(e, perFamily("10.244.1.3"))
		require.Contains(t, strings.Join(r.servers(), "\n"), "[fd00:10:96::66]:80")
		require.Contains(t, r.run("ip -6 route get 100::1 mark 0xfd200000"), "local 100::1")
		r.disableIPv6("1")
		cleanUp(t, e)
		require.NotContains(t, r.run("ip -6 rule"), "fwmark")
	}
}

// A kernel that was booted without IPv6 has no IPv6 sysctls.
func TestIPv6IsDisabledAtBoot(t *testing.T) {
	t.Parallel()
	const inside = "KERNLB_TEST_NO_IPV6_SYSCTLS"
	if os.Getenv(inside) == "" {
		netnstest.Require(t)
		cmd := exec.CommandContext(t.Context(), "unshare", "-m", os.Args[0], "-test.run",
			"^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS")
		return
	}
	r := newRig(t)
	require.NoError(t, r.ns.Do(func() error { // each namespace has its own directory
		return unix.Mount("none", "/proc/sys/net/ipv6", "tmpfs", 0, "")
	}))
	e := r.engine()
	res := ok(e.Apply(t.Context(), perFamily("10.244.1.1")))(t)
	require.Len(t, res.Refused, 1)
	require.ErrorContains(t, res.Refused[0].Err, "IPv6 is disabled on this node")
	require.Contains(t, strings.Join(r.servers(), "\n"), "10.244.1.1")
	ok(e.Cleanup(t.Context()))(t)
}

// The kernel disables IPv6 between the reading and the commit. That is a conflict, and not a
// missing permission.
func TestIPv6IsDisabledMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	b, c := r.change(perFamily("10.244.1.1"))
	r.disableIPv6("1")
	_, err := b.Commit(t.Context(), c)
	require.ErrorIs(t, err, dataplane.ErrConflict)
	require.NotErrorIs(t, err, dataplane.ErrNoPermission)
	require.ErrorContains(t, err, "IPv6 was disabled meanwhile")
}
