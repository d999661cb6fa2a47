package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/threadns"
)

// network is the rest of the network namespace: addresses and the device that holds ours, the rule
// and the route that lead packets to IPVS, sysctls, and the lock of writers.
type network struct {
	handle *netlink.Handle
	socket *nl.SocketHandle // for addresses: the handle knows no metrics of them
	events events
	ns     *threadns.NS
	// of the instance: its routing table, the group of its device, the metric of its addresses
	number  uint32
	device  string
	index   int // of the device, 0 while there is none
	turn    *threadns.Turn
	sysctls map[string]*os.File // that are open: a file is of the namespace in which it was opened
}

// rulePriority is that of the rule, behind the one of the table of local addresses.
const rulePriority = 107

func (n *network) open(c *Config, instance uint32) (err error) {
	n.number, n.device, n.sysctls = instanceNumber(instance), c.Device, map[string]*os.File{}
	if n.ns, err = threadns.Open(c.NetNS); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if n.handle, err = netlink.NewHandleAt(netns.NsHandle(n.ns.FD()),
		unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(netns.NsHandle(n.ns.FD()), netns.None(),
		unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	n.socket = &nl.SocketHandle{Socket: socket}
	if err := n.events.open(n.ns.FD()); err != nil {
		return err
	}
	if n.turn, err = threadns.OpenTurn(n.ns.FD()); err != nil {
		return err
	}
	return n.findDevice(&addresses{})
}

func (n *network) close() error {
	if n.handle != nil {
		n.handle.Close()
	}
	if n.socket != nil {
		n.socket.Close()
	}
	n.events.close()
	for _, f := range n.sysctls {
		f.Close()
	}
	if n.turn != nil {
		n.turn.Close()
	}
	if n.ns == nil {
		return nil
	}
	err := n.ns.Close()
	n.ns = nil
	return err
}

func (n *network) rule(family int) *netlink.Rule {
	r := netlink.NewRule()
	mask := steerBit
	r.Family, r.Table, r.Priority, r.Mark, r.Mask = family, int(n.number), rulePriority,
		steerBit, &mask
	return r
}

func (n *network) route(family int) (*netlink.Route, error) {
	lo, err := n.handle.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("interface lo: %w", err)
	}
	bits := 32
	if family == unix.AF_INET6 {
		bits = 128
	}
	return &netlink.Route{LinkIndex: lo.Attrs().Index, Table: int(n.number), Type: unix.RTN_LOCAL,
		Scope: unix.RT_SCOPE_HOST, Family: family,
		Dst: &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}}, nil
}

var ipFamilies = []int{unix.AF_INET, unix.AF_INET6}

// Addresses that nobody has, to ask where a marked packet would go: one that is reserved (RFC 1112)
// and one whose packets are to be discarded (RFC 6666).
var nowhere = []net.IP{net.IPv4(240, 0, 0, 1), net.ParseIP("100::1")}

// leads reports whether marked packets of both families are led here.
func (n *network) leads() bool {
	for _, to := range nowhere {
		routes, err := n.handle.RouteGetWithOptions(to, &netlink.RouteGetOptions{Mark: steerBit})
		if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL ||
			routes[0].Table != int(n.number) {
			return false
		}
	}
	return true
}

// misled says what of the rule and the route is missing.
func (n *network) misled() (l []string, err error) {
	for _, f := range ipFamilies {
		rules, err := n.handle.RuleListFiltered(f, &netlink.Rule{Table: int(n.number)},
			netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
		if len(rules) == 0 {
			l = append(l, "the rule that leads packets to IPVS is missing")
		}
		routes, err := n.handle.RouteListFiltered(f, &netlink.Route{Table: int(n.number)},
			netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		if len(routes) == 0 {
			l = append(l, "the route that leads packets to IPVS is missing")
		}
	}
	return l, nil
}

// settled reports whether packets are led here and sysctls have the wanted values. It takes two
// requests, and a read for each sysctl. Where packets are not led here although the rule and the
// route are there, since a rule of somebody else comes first, nothing of ours is to be repaired.
func (n *network) settled(wanted map[string]string) (bool, error) {
	now, err := n.readSysctls(wanted)
	if err != nil || !maps.Equal(now, wanted) {
		return false, err
	}
	if n.leads() {
		return true, nil
	}
	missing, err := n.misled()
	return len(missing) == 0, err
}

// lead adds the rule and the route.
func (n *network) lead() error {
	for _, f := range ipFamilies {
		route, err := n.route(f)
		if err != nil {
			return err
		}
		if err := n.handle.RouteReplace(route); err != nil {
			return fmt.Errorf("add route: %w", err)
		}
		if err := n.handle.RuleAdd(n.rule(f)); err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("add rule: %w", err)
		}
	}
	return nil
}

// unlead deletes the rule and the route.
func (n *network) unlead() error {
	for _, f := range ipFamilies {
		if err := n.handle.RuleDel(n.rule(f)); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("delete rule: %w", err)
		}
		route, err := n.route(f)
		if err != nil {
			return err
		}
		if err := n.handle.RouteDel(route); err != nil && !errors.Is(err, syscall.ESRCH) &&
			!errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("delete route: %w", err)
		}
	}
	return nil
}
