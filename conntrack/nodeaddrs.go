package conntrack

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kernlb/kernlb/internal/hostaddrs"
)

// NodeAddrs returns the addresses of the namespace's interfaces that lie in one of the ranges,
// sorted, without loopback and IPv6 link-local ones. If node ports answer in these ranges, these
// addresses are the right [Change.NodeAddrs].
func (t *Table) NodeAddrs(ranges []netip.Prefix) ([]netip.Addr, error) {
	var addrs []netip.Addr
	err := t.ns.Do(func() (err error) {
		addrs, err = hostaddrs.All()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the node: %w", explain(err))
	}
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		in := func(r netip.Prefix) bool { return r.Contains(a) }
		return a.IsLoopback() || a.IsLinkLocalUnicast() && a.Is6() ||
			!slices.ContainsFunc(ranges, in)
	})
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}
