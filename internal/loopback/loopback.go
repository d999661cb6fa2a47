// Package loopback is what backends that answer at loopback addresses have in common: the sysctl
// route_localnet, and how they note what it was.
//
// The kernel routes packets to and from loopback addresses beyond the loopback interface only if it
// is on. Then others can send to what listens at such addresses (CVE-2020-8558), so that who turns
// it on first makes a guard, a rule that drops what comes from elsewhere.
package loopback

import (
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// Name is the sysctl's, as sysctl(8) shows it.
const Name = "net.ipv4.conf.all.route_localnet"

// Loopback are the loopback addresses of IPv4. Those of IPv6 cannot be routed.
var Loopback = netip.MustParsePrefix("127.0.0.0/8")

// Wanted reports whether something may answer at loopback addresses.
func Wanted(r *servicemodel.Rules) bool { return len(NodePorts(r)) > 0 }

// NodePorts returns the ranges of loopback addresses that node ports answer at.
func NodePorts(r *servicemodel.Rules) (l []netip.Prefix) {
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

// Line is the setting that says what the sysctl was before it was needed. It is not one of the
// node's rules, and is there only as long as it is needed.
func Line(was bool) string {
	if was {
		return before + " 1"
	}
	return before + " 0"
}

// ParseLine is the inverse of [Line]; ok says whether the setting is such a line.
func ParseLine(line string) (was, ok bool) {
	value, ok := strings.CutPrefix(line, before+" ")
	return value == "1", ok
}
