package ipvs

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var ipFamilies = []int{unix.AF_INET, unix.AF_INET6}

// rule is the rule that leads marked packets of a family to the routing table of the instance.
func (k *kernel) rule(family int) *netlink.Rule {
	r := netlink.NewRule()
	mask := steerBit
	r.Family, r.Table, r.Priority = family, int(instanceNumber(k.instance)), rulePriority
	r.Mark, r.Mask = steerBit, &mask
	return r
}

// localRoute is the route of that table: it delivers all packets to this machine.
func (k *kernel) localRoute(family int) (*netlink.Route, error) {
	lo, err := k.links.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("interface lo: %w", err)
	}
	bits := 32
	if family == unix.AF_INET6 {
		bits = 128
	}
	return &netlink.Route{LinkIndex: lo.Attrs().Index, Table: int(instanceNumber(k.instance)),
		Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Family: family,
		Dst: &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}}, nil
}

// Addresses that nobody has, to ask where a marked packet would go: one that is reserved (RFC 1112)
// and one whose packets are to be discarded (RFC 6666).
var nowhere = []net.IP{net.IPv4(240, 0, 0, 1), net.ParseIP("100::1")}

// routed reports whether marked packets of both families are delivered to this machine.
func (k *kernel) routed() bool {
	for _, to := range nowhere {
		routes, err := k.links.RouteGet(to, steerBit)
		if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL ||
			routes[0].Table != int(instanceNumber(k.instance)) {
			return false
		}
	}
	return true
}

// readUnrouted returns which of the rules and the routes are missing.
func (k *kernel) readUnrouted() (missing []string, err error) {
	table := int(instanceNumber(k.instance))
	for _, f := range ipFamilies {
		rules, err := k.links.RuleList(f, table)
		routes, routesErr := k.links.RouteList(f, table)
		if err := errors.Join(err, routesErr); err != nil {
			return nil, fmt.Errorf("list rules and routes: %w", err)
		}
		if len(rules) == 0 {
			missing = append(missing, "the rule that leads packets to IPVS is missing")
		}
		if len(routes) == 0 {
			missing = append(missing, "the route that leads packets to IPVS is missing")
		}
	}
	return missing, nil
}

// route adds the rules and the routes.
func (k *kernel) route() error {
	for _, f := range ipFamilies {
		route, err := k.localRoute(f)
		if err != nil {
			return err
		}
		if err := k.links.RouteReplace(route); err != nil {
			return fmt.Errorf("add route: %w", err)
		}
		if err := k.links.RuleAdd(k.rule(f)); err != nil {
			return fmt.Errorf("add rule: %w", err)
		}
	}
	return nil
}

// unroute deletes the rules and the routes.
func (k *kernel) unroute() error {
	for _, f := range ipFamilies {
		if err := k.links.RuleDel(k.rule(f)); err != nil {
			return fmt.Errorf("delete rule: %w", err)
		}
		route, err := k.localRoute(f)
		if err != nil {
			return err
		}
		if err := k.links.RouteDel(route); err != nil {
			return fmt.Errorf("delete route: %w", err)
		}
	}
	return nil
}
