package serve

import (
	"net"
	"net/netip"
)

// HostAddrs returns the addresses of all interfaces in the network namespace of the calling thread,
// in the kernel's order.
func HostAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	var addrs []netip.Addr
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			addrs = append(addrs, p.Addr().Unmap())
		}
	}

	return addrs, err
}
