package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// network is the rest of the network namespace: addresses, the route that leads packets to IPVS, sysctls.
type network struct {
	handle *netlink.Handle
	ns     int
	table  int
}

// rulePriority is that of the rule, behind the one of the table of local addresses.
const rulePriority = 107

func (n *network) open(fd int, instance uint32) (err error) {
	n.ns, n.table = -1, 0x6b000000|int(instance>>16)
	if fd == 0 {
		n.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	} else {
		n.ns, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if n.handle, err = netlink.NewHandleAt(netns.NsHandle(n.ns), unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}
	return nil
}

func (n *network) close() error {
	if n.handle != nil {
		n.handle.Close()
	}
	if n.ns <= 0 {
		return nil
	}
	err := unix.Close(n.ns)
	n.ns = -1
	return err
}

// addresses returns the node's own addresses that can take node ports, sorted.
func (n *network) addresses() ([]netip.Addr, error) {
	list, err := n.handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			if addr = addr.Unmap(); !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
				out = append(out, addr)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

func (n *network) rule(family int) *netlink.Rule {
	r := netlink.NewRule()
	mask := steerBit
	r.Family, r.Table, r.Priority, r.Mark, r.Mask = family, n.table, rulePriority, steerBit, &mask
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
	return &netlink.Route{LinkIndex: lo.Attrs().Index, Table: n.table, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Family: family,
		Dst: &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}}, nil
}

var ipFamilies = []int{unix.AF_INET, unix.AF_INET6}

// routed reports whether marked packets are led to this machine.
func (n *network) routed() bool {
	for _, f := range ipFamilies {
		rules, err := n.handle.RuleListFiltered(f, &netlink.Rule{Table: n.table}, netlink.RT_FILTER_TABLE)
		if err != nil || len(rules) == 0 {
			return false
		}
		routes, err := n.handle.RouteListFiltered(f, &netlink.Route{Table: n.table}, netlink.RT_FILTER_TABLE)
		if err != nil || len(routes) == 0 {
			return false
		}
	}
	return true
}

// wantedSysctls are set under /proc/sys.
var wantedSysctls = [][2]string{
	{"net/ipv4/vs/conntrack", "1"},
	{"net/ipv4/vs/expire_nodest_conn", "1"},
	{"net/ipv4/vs/expire_quiescent_template", "1"},
	{"net/ipv4/ip_forward", "1"},
}

// prepare adds the rule and the route, and sets sysctls. It returns what those were that it changed, besides what is known already.
func (n *network) prepare(had map[string]string) (map[string]string, error) {
	if had == nil {
		had = map[string]string{}
	}
	for _, f := range ipFamilies {
		route, err := n.route(f)
		if err != nil {
			return had, err
		}
		if err := n.handle.RouteReplace(route); err != nil {
			return had, fmt.Errorf("add route: %w", err)
		}
		if err := n.handle.RuleAdd(n.rule(f)); err != nil && !errors.Is(err, syscall.EEXIST) {
			return had, fmt.Errorf("add rule: %w", err)
		}
	}
	return had, n.inside(func() error {
		for _, s := range wantedSysctls {
			value, err := os.ReadFile("/proc/sys/" + s[0])
			if err != nil {
				return fmt.Errorf("read sysctl: %w", err)
			}
			if v := strings.TrimSpace(string(value)); v != s[1] {
				if err := os.WriteFile("/proc/sys/"+s[0], []byte(s[1]), 0); err != nil {
					return fmt.Errorf("set sysctl: %w", err)
				}
				if _, known := had[s[0]]; !known {
					had[s[0]] = v
				}
			}
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
	return n.inside(func() error {
		for name, v := range had {
			if !strings.HasPrefix(name, "net/ipv4/") || strings.Contains(name, "..") {
				continue
			}
			if err := os.WriteFile("/proc/sys/"+name, []byte(v), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("restore sysctl: %w", err)
			}
		}
		return nil
	})
}

// inside calls f on a thread that is in the namespace: what lies under /proc/sys/net is looked up in the network namespace of the thread
// that opens it (net_ctl_header_lookup in net/sysctl_net.c).
func (n *network) inside(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(own)
			err = unix.Setns(n.ns, unix.CLONE_NEWNET)
		}
		if err != nil {
			runtime.UnlockOSThread()
			result <- err
			return
		}
		result <- f()
		// A thread that cannot go back ends with its goroutine.
		if unix.Setns(own, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return <-result
}
