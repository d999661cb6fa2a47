package conntrack

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// NodeAddrs returns those addresses of the namespace's interfaces that are in one of the ranges,
// sorted, without loopback and IPv6 link-local addresses. If node ports answer in these ranges, use
// the result as [Change.NodeAddrs].
func (t *Table) NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error) {
	var found []net.Addr
	err := t.ns.Do(func() (err error) {
		found, err = net.InterfaceAddrs()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the node: %w", explain(err))
	}
	var addrs []netip.Addr
	for _, a := range found {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue // not an IP address
		}
		addr := p.Addr().Unmap()
		in := func(r netip.Prefix) bool { return r.Contains(addr) }
		if addr.IsLoopback() || addr.IsLinkLocalUnicast() && addr.Is6() ||
			!slices.ContainsFunc(ranges, in) {
			continue
		}

		addrs = append(addrs, addr)
	}

	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}
