package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/threadns"
)

// network is the rest of the network namespace: addresses and the device that holds ours, the route that leads packets to IPVS, sysctls.
type network struct {
	handle  *netlink.Handle
	socket  *nl.SocketHandle // for addresses: the handle knows no metrics of them
	events  events
	ns      *threadns.NS
	number  uint32 // of the instance: its routing table, the group of its device, the metric of its addresses
	device  string
	index   int // of the device, 0 while there is none
	sysctls map[string]string
}

// rulePriority is that of the rule, behind the one of the table of local addresses.
const rulePriority = 107

func (n *network) open(c *Config, instance uint32) (err error) {
	n.number, n.device, n.sysctls = instanceNumber(instance), c.Device, wantedSysctls(c.StrictARP)
	if n.ns, err = threadns.Open(c.NetNS); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if n.handle, err = netlink.NewHandleAt(netns.NsHandle(n.ns.FD()), unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(netns.NsHandle(n.ns.FD()), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	n.socket = &nl.SocketHandle{Socket: socket}
	if err := n.events.open(n.ns.FD()); err != nil {
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
	r.Family, r.Table, r.Priority, r.Mark, r.Mask = family, int(n.number), rulePriority, steerBit, &mask
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
	return &netlink.Route{LinkIndex: lo.Attrs().Index, Table: int(n.number), Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Family: family,
		Dst: &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}}, nil
}

var ipFamilies = []int{unix.AF_INET, unix.AF_INET6}

// unsettled says what of the rule, the route and the sysctls is not as it should be. had is what sysctls were before.
func (n *network) unsettled(had map[string]string) (l []string, err error) {
	for _, f := range ipFamilies {
		rules, err := n.handle.RuleListFiltered(f, &netlink.Rule{Table: int(n.number)}, netlink.RT_FILTER_TABLE)
		if err != nil || len(rules) == 0 {
			l = append(l, "the rule that leads packets to IPVS is missing")
		}
		routes, err := n.handle.RouteListFiltered(f, &netlink.Route{Table: int(n.number)}, netlink.RT_FILTER_TABLE)
		if err != nil || len(routes) == 0 {
			l = append(l, "the route that leads packets to IPVS is missing")
		}
	}
	return l, n.ns.Do(func() error {
		for _, name := range slices.Sorted(maps.Keys(n.sysctls)) {
			v, err := readSysctl(name)
			switch {
			case err != nil:
				l = append(l, err.Error())
			case v != n.sysctls[name]:
				l = append(l, fmt.Sprintf("sysctl %s is %s, not %s", name, v, n.sysctls[name]))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(had)) {
			if n.sysctls[name] == "" {
				l = append(l, fmt.Sprintf("sysctl %s is set, and need not be", name))
			}
		}
		return nil
	})
}

// wantedSysctls are set under /proc/sys, to these values.
func wantedSysctls(strictARP bool) map[string]string {
	m := map[string]string{
		"net/ipv4/vs/conntrack":                 "1",
		"net/ipv4/vs/expire_nodest_conn":        "1",
		"net/ipv4/vs/expire_quiescent_template": "1",
		"net/ipv4/ip_forward":                   "1",
	}
	if strictARP {
		m["net/ipv4/conf/all/arp_ignore"] = "1"
		m["net/ipv4/conf/all/arp_announce"] = "2"
	}
	return m
}

func readSysctl(name string) (string, error) {
	v, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(v)), nil
}

// writeSysctl sets one of the sysctls that a backend may set.
func writeSysctl(name, value string) error {
	if _, ours := wantedSysctls(true)[name]; !ours {
		return nil
	}
	if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl: %w", err)
	}
	return nil
}

// prepare adds the rule and the route, and sets sysctls. It keeps in had what those were that it changed, unless that is known already, and restores
// those that are no longer wanted.
func (n *network) prepare(had map[string]string) error {
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
	return n.ns.Do(func() error {
		for name, want := range n.sysctls {
			v, err := readSysctl(name)
			if err != nil {
				return err
			}
			if v == want {
				continue
			}
			if err := writeSysctl(name, want); err != nil {
				return err
			}
			if _, known := had[name]; !known {
				had[name] = v
			}
		}
		for name, v := range had {
			if n.sysctls[name] != "" {
				continue
			}
			if err := writeSysctl(name, v); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			delete(had, name)
		}
		return nil
	})
}

// restore undoes prepare.
func (n *network) restore(had map[string]string) error {
	for _, f := range ipFamilies {
		if err := n.handle.RuleDel(n.rule(f)); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("delete rule: %w", err)
		}
		route, err := n.route(f)
		if err != nil {
			return err
		}
		if err := n.handle.RouteDel(route); err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("delete route: %w", err)
		}
	}
	return n.ns.Do(func() error {
		for name, v := range had {
			if err := writeSysctl(name, v); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}
