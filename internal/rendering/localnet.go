package rendering

// The kernel routes packets to and from loopback addresses beyond the loopback interface only if
// the sysctl route_localnet is on. Then other machines can send to programs that listen at such
// addresses (CVE-2020-8558). So a backend first makes a guard, a rule that drops packets from
// elsewhere, and then turns the sysctl on.

import (
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// RouteLocalnetName is the name of the sysctl in sysctl(8).
const RouteLocalnetName = "net.ipv4.conf.all.route_localnet"

// Loopback is the range of loopback addresses of IPv4. The kernel cannot route IPv6's.
var Loopback = netip.MustParsePrefix("127.0.0.0/8")

// WantsRouteLocalnet reports whether any node port answers at loopback addresses.
func WantsRouteLocalnet(r *servicemodel.Rules) bool { return len(LoopbackNodePorts(r)) > 0 }

// LoopbackNodePorts returns the ranges of loopback addresses at which node ports answer.
func LoopbackNodePorts(r *servicemodel.Rules) (l []netip.Prefix) {
	if !r.LocalhostNodePorts {
		return nil
	}
	for _, p := range r.NodePorts {
		switch {
		case !p.Overlaps(Loopback):
		case p.Bits() <= Loopback.Bits():
			l = append(l, Loopback)
		default:
			l = append(l, p)
		}
	}
	return l
}

const before = "route-localnet-before"

// RouteLocalnetLine is the setting that keeps the value that the sysctl had before it was turned
// on. It is not one of the node's rules, and exists only while the sysctl is needed.
func RouteLocalnetLine(was bool) string {
	if was {
		return before + " 1"
	}
	return before + " 0"
}

// ParseRouteLocalnetLine is the inverse of [RouteLocalnetLine]. ok reports whether the line is such
// a setting.
func ParseRouteLocalnetLine(line string) (was, ok bool) {
	value, ok := strings.CutPrefix(line, before+" ")
	return value == "1", ok
}
