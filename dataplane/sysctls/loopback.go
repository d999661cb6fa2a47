package sysctls

import (
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

// The kernel routes packets to and from loopback addresses beyond the loopback interface only if
// the sysctl route_localnet is on. Then other machines can send to programs that listen at such
// addresses (CVE-2020-8558). So a backend first adds a guard, a rule that drops such packets from
// other machines, and only then turns the sysctl on. It turns the sysctl off before it removes its
// guard. If another program has a guard, it leaves the sysctl on, because that program may rely on
// it.

// RouteLocalnet is the sysctl for all interfaces (ip-sysctl.rst).
const RouteLocalnet = "net/ipv4/conf/all/route_localnet"

// GuardChain is the chain with the guard of an instance, in a table of the family ip. If the table
// contains a set "settings", the comment of one of its elements is the [Record].
const GuardChain = "guard-loopback"

// Loopback returns the values that node ports at loopback addresses need, or nil if there are no
// such node ports.
func Loopback(r *servicemodel.Rules) map[string]string {
	if len(LoopbackNodePorts(r)) == 0 {
		return nil
	}
	return map[string]string{RouteLocalnet: "1"}
}

// LoopbackNodePorts returns the ranges of loopback addresses at which node ports answer: only of
// IPv4, because the kernel does not route IPv6 loopback addresses.
func LoopbackNodePorts(r *servicemodel.Rules) (l []netip.Prefix) {
	if !r.LocalhostNodePorts {
		return nil
	}
	loopback := netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	for _, p := range r.NodePorts {
		switch {
		case !p.Overlaps(loopback):
		case p.Bits() <= loopback.Bits():
			l = append(l, loopback)
		default:
			l = append(l, p)
		}
	}

	return l
}
