package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
)

// ipFamilies are the families in the order of nft.Families.
var ipFamilies = [2]int{unix.AF_INET, unix.AF_INET6}

// errDisabled says that the kernel refuses an IPv6 route or address. The next reading finds the
// reason.
var errDisabled = errors.New("IPv6 was disabled meanwhile")

// readIPv6 reports whether the kernel has IPv6, and accepts a local IPv6 route. Such a route uses
// lo, and lo must not have IPv6 disabled (fib6_nh_init in net/ipv6/route.c). binds reports whether
// the configured device accepts IPv6 addresses (ipv6_add_addr in net/ipv6/addrconf.c).
func (k *kernel) readIPv6() (ipv6, binds bool, err error) {
	if ipv6, _, err = k.enabled("lo"); err != nil || k.device == "" {
		return ipv6, true, err
	}
	binds, there, err := k.enabled(k.device)
	if err == nil && !there { // the device will have the default when it is created
		binds, _, err = k.enabled("default")
	}
	return ipv6, binds, err
}

// enabled reports whether a device has IPv6 enabled. there is false if there is no such device, or
// with ipv6.disable=1.
func (k *kernel) enabled(device string) (on, there bool, err error) {
	v, err := k.values.Files.Read(context.Background(),
		"net/ipv6/conf/"+device+"/disable_ipv6")
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	return v == "0", true, err
}

// rule is the policy rule that sends marked packets of a family to the routing table of the
// instance.
func (k *kernel) rule(family int) *netlink.Rule {
	r := netlink.NewRule()
	mask := ledMask
	r.Family, r.Table, r.Priority = family, int(instanceNumber(k.instance)), rulePriority
	r.Mark, r.Mask = k.mark, &mask
	return r
}

// loopback is the index of the device lo in every network namespace (LOOPBACK_IFINDEX).
const loopback = 1

// localRoute is the route in the instance's routing table. It delivers all packets to this machine.
func (k *kernel) localRoute(family int) *netlink.Route {
	bits := 32
	if family == unix.AF_INET6 {
		bits = 128
	}
	return &netlink.Route{LinkIndex: loopback, Table: int(instanceNumber(k.instance)),
		Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Family: family,
		Dst: &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}}
}

// Addresses that no machine has, to query the route of a marked packet: a reserved address (RFC
// 1112) and an address whose packets are discarded (RFC 6666).
var nowhere = [2]net.IP{net.IPv4(240, 0, 0, 1), net.ParseIP("100::1")}

// routed reports whether marked packets of a family are delivered to this machine.
func (k *kernel) routed(family int) bool {
	routes, err := k.links.RouteGet(nowhere[family], k.mark)
	return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL &&
		routes[0].Table == int(instanceNumber(k.instance))
}

// readRouting lists, by family, the faults of the rule and the route, and reports whether one of
// them exists.
func (k *kernel) readRouting(ipv6 bool) (missing [2][]string, exists [2]bool, err error) {
	for i, f := range ipFamilies {
		if f == unix.AF_INET6 && !ipv6 {
			continue // the kernel may refuse to list rules or routes
		}
		rules, err := k.policyRules(f)
		routes, routesErr := k.links.RouteList(f, int(instanceNumber(k.instance)))
		if err := errors.Join(err, routesErr); err != nil {
			return missing, exists, fmt.Errorf("list rules and routes: %w", err)
		}
		exists[i] = rules.there || len(rules.stale)+len(routes) > 0
		if !rules.there {
			missing[i] = append(missing[i], "the rule that leads packets to IPVS is missing")
		}
		if len(rules.stale) > 0 {
			missing[i] = append(missing[i], "a rule leads packets of another mark to IPVS")
		}
		if len(routes) == 0 {
			missing[i] = append(missing[i], "the route that leads packets to IPVS is missing")
		}
	}

	return missing, exists, nil
}

// routingRules are the policy rules of a family that concern the instance.
type routingRules struct {
	there  bool           // the instance's rule exists
	stale  []netlink.Rule // the instance's rules for an earlier mark
	others []netlink.Rule // other programs' rules about the instance's marks
}

func (k *kernel) policyRules(family int) (r routingRules, err error) {
	all, err := k.links.RuleList(family)
	for _, l := range all {
		mask := uint32(0)
		if l.Mask != nil {
			mask = *l.Mask
		}
		switch {
		case l.Table != int(instanceNumber(k.instance)):
			if mask&ownMask != 0 && (l.Mark^k.mark)&mask&ownMask == 0 && !l.Invert {
				r.others = append(r.others, l)
			}
		case l.Mark == k.mark && mask == ledMask && l.Priority == rulePriority:
			r.there = true
		default:
			r.stale = append(r.stale, l)
		}
	}

	return r, err
}

// readRivals returns the effects of other programs' policy rules on marked packets: rules that
// match marks of the instance and, if its own rule exists, a rule that precedes it.
func (k *kernel) readRivals(o *observed) (rivals []string, err error) {
	settings := o.rules()
	for i, f := range ipFamilies {
		if !o.leads(nft.Families[i], &settings) {
			continue
		}
		rules, err := k.policyRules(f)
		if err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules.others {
			rivals = append(rivals, fmt.Sprintf("policy rule %d leads packets with the mark "+
				"0x%x/0x%x to table %d", r.Priority, r.Mark, *r.Mask, r.Table))
		}

		if len(o.unrouted[i]) == 0 && !k.routed(i) {
			rivals = append(rivals, "packets to services do not reach IPVS: another policy rule "+
				"comes before that of the instance")
		}
	}

	return rivals, nil
}

// route adds the rule and the route of a family, and deletes stale rules.
func (k *kernel) route(family int) error {
	err := k.links.RouteReplace(k.localRoute(family))
	if family == unix.AF_INET6 && (errors.Is(err, syscall.EACCES) || unsupported(err)) {
		// The process does not lack a permission, so the error is not wrapped.
		return fmt.Errorf("add route: %w: %v", errDisabled, err)
	}

	if err != nil {
		return fmt.Errorf("add route: %w", err)
	}
	if err := k.links.RuleAdd(k.rule(family)); err != nil {
		return fmt.Errorf("add rule: %w", err)
	}
	return k.deleteRules(family, false)
}

// deleteRules deletes the rules of the instance in a family: all rules, or only the stale ones.
func (k *kernel) deleteRules(family int, all bool) error {
	rules, err := k.policyRules(family)
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	l := rules.stale
	if all {
		l = append(l, *k.rule(family))
	}
	for _, r := range l {
		r.Family = family
		if err := k.links.RuleDel(&r); err != nil {
			return fmt.Errorf("delete rule: %w", err)
		}
	}

	return nil
}

// unroute deletes the rules and the route of a family. A kernel that was booted without IPv6 has no
// IPv6 rules and routes.
func (k *kernel) unroute(family int) error {
	err := k.deleteRules(family, true)
	if family == unix.AF_INET6 && unsupported(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := k.links.RouteDel(k.localRoute(family)); err != nil {
		return fmt.Errorf("delete route: %w", err)
	}
	return nil
}

// unsupported reports whether the kernel lacks a family. The kernel returns one errno for rules,
// and the other for routes.
func unsupported(err error) bool {
	return errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EOPNOTSUPP)
}
