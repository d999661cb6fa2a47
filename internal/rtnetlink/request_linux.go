package rtnetlink

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/threadns"
)

// dumpTries is the number of requests for a list before an interrupted list is an error.
const dumpTries = 8

// Conn is a connection to rtnetlink. It must not be used by several goroutines at the same time.
type Conn struct {
	handle *netlink.Handle
	raw    nl.SocketHandle // for requests that netlink.Handle lacks
	around Around
}

// Around is called instead of a request, and calls do to make the request. dump says that the
// request is for a list.
type Around func(dump bool, do func() error) error

// Open opens a connection in a network namespace.
func Open(ns *threadns.NS) (*Conn, error) {
	c := &Conn{around: func(_ bool, do func() error) error { return do() }}
	err := ns.Do(func() (err error) { // not by its descriptor, which takes CAP_SYS_ADMIN
		if c.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		c.raw.Socket, err = nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("open a socket of rtnetlink: %w", err)
	}

	return c, nil
}

// Close closes the connection, if there is one. Later requests fail with [kernelerr.ErrClosed]: a
// closed netlink.Handle would make them in the namespace of the calling thread.
func (c *Conn) Close() {
	if c == nil {
		return
	}
	c.around = func(bool, func() error) error { return kernelerr.ErrClosed }
	if c.handle != nil {
		c.handle.Close()
	}
	c.raw.Close()
}

// Wrap makes c call a function around each request from now on. It is for tests.
func (c *Conn) Wrap(around Around) { c.around = around }

// ask makes a request that changes nothing. It repeats the request if the dump was interrupted.
func ask[T any](c *Conn, dump bool, do func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		var answer T
		err := c.around(dump, func() (err error) {
			answer, err = do()
			return err
		})
		if err == nil {
			return answer, nil
		}
		if try == dumpTries || !errors.Is(err, netlink.ErrDumpInterrupted) {
			var none T
			return none, err
		}
	}
}

// change makes a request that changes something.
func (c *Conn) change(do func() error) error { return c.around(false, do) }

// LinkByName returns the link with a name. [Gone] reports whether an error means that the link does
// not exist.
func (c *Conn) LinkByName(name string) (netlink.Link, error) {
	return ask(c, false, func() (netlink.Link, error) { return c.handle.LinkByName(name) })
}

// ServiceDevices are the names of devices on which other balancers bind the addresses of services:
// kube-proxy in the mode ipvs, and kube-router. These addresses are not the node's own, so they
// take no node ports. kube-proxy leaves out its device, too.
var ServiceDevices = []string{"kube-ipvs0", "kube-dummy-if"}

// Indices returns the indices of the links with these names. It leaves out links that do not exist.
func (c *Conn) Indices(names []string) (l []int, err error) {
	for _, name := range names {
		link, err := c.LinkByName(name)
		switch {
		case err == nil:
			l = append(l, link.Attrs().Index)
		case !Gone(err):
			return nil, fmt.Errorf("device %s: %w", name, err)
		}
	}

	return l, nil
}

// LinkByIndex is [Conn.LinkByName] for the index of an interface.
func (c *Conn) LinkByIndex(index int) (netlink.Link, error) {
	return ask(c, false, func() (netlink.Link, error) { return c.handle.LinkByIndex(index) })
}

// Gone reports whether an error says that the link does not exist, or no longer exists.
func Gone(err error) bool {
	return errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, syscall.ENODEV)
}

// LinkList lists all links.
func (c *Conn) LinkList() ([]netlink.Link, error) { return ask(c, true, c.handle.LinkList) }

// LinkAdd creates a link.
func (c *Conn) LinkAdd(l netlink.Link) error {
	return c.change(func() error { return c.handle.LinkAdd(l) })
}

// LinkSetUp sets a link up.
func (c *Conn) LinkSetUp(l netlink.Link) error {
	return c.change(func() error { return c.handle.LinkSetUp(l) })
}

// LinkDel deletes the link with a name, if there is one.
func (c *Conn) LinkDel(name string) error {
	l, err := c.LinkByName(name)
	if err == nil {
		err = c.change(func() error { return c.handle.LinkDel(l) })
	}
	if Gone(err) {
		return nil
	}
	return err
}

// AddrList lists the addresses of all links, in both families.
func (c *Conn) AddrList() ([]netlink.Addr, error) {
	return ask(c, true, func() ([]netlink.Addr, error) {
		return c.handle.AddrList(nil, netlink.FAMILY_ALL)
	})
}

// AddrDel removes an address from the link with an index.
func (c *Conn) AddrDel(index int, addr *net.IPNet) error {
	return c.change(func() error {
		return c.handle.AddrDel(nil, &netlink.Addr{LinkIndex: index, IPNet: addr})
	})
}

// RouteGet returns the routes of a packet with a mark.
func (c *Conn) RouteGet(to net.IP, mark uint32) ([]netlink.Route, error) {
	return ask(c, false, func() ([]netlink.Route, error) {
		return c.handle.RouteGetWithOptions(to, &netlink.RouteGetOptions{Mark: mark})
	})
}

// RouteIn returns the routes of a packet that arrives on a link. If the kernel would not accept the
// packet, the error says why: EXDEV means rp_filter, and so does EINVAL since Linux 6.13.
func (c *Conn) RouteIn(link int, from, to net.IP) ([]netlink.Route, error) {
	return ask(c, false, func() ([]netlink.Route, error) {
		return c.handle.RouteGetWithOptions(to, &netlink.RouteGetOptions{IifIndex: link,
			SrcAddr: from})
	})
}

// RouteList lists the routes of a table.
func (c *Conn) RouteList(family, table int) ([]netlink.Route, error) {
	return ask(c, true, func() ([]netlink.Route, error) {
		return c.handle.RouteListFiltered(family, &netlink.Route{Table: table},
			netlink.RT_FILTER_TABLE)
	})
}

// RouteReplace adds a route, or replaces the existing one.
func (c *Conn) RouteReplace(r *netlink.Route) error {
	return c.change(func() error { return c.handle.RouteReplace(r) })
}

// RouteDel deletes a route, if it exists.
func (c *Conn) RouteDel(r *netlink.Route) error {
	return except(c.change(func() error { return c.handle.RouteDel(r) }), syscall.ESRCH,
		syscall.ENOENT)
}

// RuleList lists the rules of a family.
func (c *Conn) RuleList(family int) ([]netlink.Rule, error) {
	return ask(c, true, func() ([]netlink.Rule, error) { return c.handle.RuleList(family) })
}

// RuleAdd adds a rule, unless it exists.
func (c *Conn) RuleAdd(r *netlink.Rule) error {
	return except(c.change(func() error { return c.handle.RuleAdd(r) }), syscall.EEXIST)
}

// RuleDel deletes a rule, if it exists.
func (c *Conn) RuleDel(r *netlink.Rule) error {
	return except(c.change(func() error { return c.handle.RuleDel(r) }), syscall.ENOENT)
}

// except returns err, or nil if it is one of the harmless errors.
func except(err error, harmless ...error) error {
	for _, h := range harmless {
		if errors.Is(err, h) {
			return nil
		}
	}

	return err
}

// Execute makes a request for which netlink.Handle has no method. It returns the bodies of the
// answers with a message type; 0 means all.
func (c *Conn) Execute(req *nl.NetlinkRequest, answers uint16) ([][]byte, error) {
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: &c.raw}
	execute := func() ([][]byte, error) { return req.Execute(unix.NETLINK_ROUTE, answers) }
	return ask(c, req.Flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP, execute)
}
