package proxy_test

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/examples/userspace/proxy"
	"github.com/kernlb/kernlb/internal/threadns"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestConformance runs the part of the suite that makes sense for a proxy, with real packets.
func TestConformance(t *testing.T) {
	t.Parallel()
	dataplanetest.Run(t, scenario.Backend{Open: openIn, Proxy: true})
}

// within is a proxy in another network namespace.
type within struct {
	*proxy.Backend
	ns *threadns.NS
}

func openIn(at netns.Namespace) (backends.Backend, error) {
	ns, err := threadns.Open(at)
	if err != nil {
		return nil, err
	}
	if err = ns.Do(haveServiceAddresses); err != nil {
		return nil, err
	}

	// However slow the machine is, an existing endpoint accepts connections.
	b, err := proxy.New(&proxy.Config{Within: ns.Do, ConnectTimeout: time.Minute})
	return within{b, ns}, err
}

func (w within) Close() error {
	defer w.ns.Close()
	return w.Backend.Close()
}

// haveServiceAddresses makes the addresses of services local to the node, with routes. IPv6 sockets
// can be bound to such an address only if a sysctl allows it.
func haveServiceAddresses() error {
	err := os.WriteFile("/proc/sys/net/ipv6/ip_nonlocal_bind", []byte("1"), 0)
	if err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for cidr, src := range map[string]string{
		netnstest.Net.ServiceCIDRv4:      netnstest.Net.NodeIPv4,
		netnstest.Net.LoadBalancerCIDRv4: netnstest.Net.NodeIPv4,
		netnstest.Net.ServiceCIDRv6:      netnstest.Net.NodeIPv6,
		netnstest.Net.LoadBalancerCIDRv6: netnstest.Net.NodeIPv6,
	} {
		p := netip.MustParsePrefix(cidr)
		dst := &net.IPNet{IP: p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		err := netlink.RouteReplace(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst,
			Src: net.ParseIP(src), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
			Scope: unix.RT_SCOPE_HOST})
		if err != nil {
			return err
		}
	}

	return nil
}
