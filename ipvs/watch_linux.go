package ipvs

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
)

// subscribe opens a socket that gets the notices of groups of rtnetlink. AddrSubscribe,
// LinkSubscribe and RouteSubscribe of vishvananda/netlink would not do: there is none for rules,
// they do not tell an overrun from other errors, and they deliver from a goroutine of their own,
// while a change that was made must be seen by the next look.
func subscribe(ns *threadns.NS, groups ...uint) (*nl.NetlinkSocket, error) {
	var s *nl.NetlinkSocket
	err := ns.Do(func() (err error) { // not by its descriptor, which takes CAP_SYS_ADMIN
		s, err = nl.Subscribe(unix.NETLINK_ROUTE, groups...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of the network: %w", err)
	}
	return s, nil
}

// changes says whether addresses or links may have changed, so that thousands of addresses need not
// be listed to know that none has. The kernel queues the notice of a change before who makes the
// change has an answer; of a new IPv6 address, when it is usable.
type changes struct {
	socket  *nl.NetlinkSocket
	suspect atomic.Bool // there may have been changes since the addresses were listed last
}

func (c *changes) open(ns *threadns.NS) (err error) {
	c.suspect.Store(true)
	c.socket, err = subscribe(ns, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR)
	return err
}

func (c *changes) close() {
	if c.socket != nil {
		c.socket.Close()
	}
}

// look takes all notices that are there, and reports whether there may have been changes. What they
// say is not of interest.
func (c *changes) look() bool {
	var b [1]byte
	for {
		_, _, err := unix.Recvfrom(c.socket.GetFd(), b[:], unix.MSG_DONTWAIT)
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS): // more than the socket can hold
			c.suspect.Store(true)
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return c.suspect.Load()
		default:
			c.suspect.Store(true)
			return true
		}
	}
}

// Watch calls changed when addresses come or go, since node ports are virtual servers at each of
// the node's, and when a rule or a route of ours goes, without which no packet is led to IPVS:
// programs that manage networks remove rules that they do not know. It makes Backend a
// [dataplane.Watcher].
//
// [dataplane.Watcher]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane#Watcher
func (b *Backend) Watch(ctx context.Context, changed func()) error {
	k := &b.kernel
	socket, err := subscribe(k.ns, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("ipvs: watch: %w", err)
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, socket.Close)()
	for {
		msgs, from, err := socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // more than the socket can hold
			k.changes.suspect.Store(true)
			changed()
		case err != nil:
			return fmt.Errorf("ipvs: watch the network: %w", err)
		case from.Pid == nl.PidKernel && k.concerned(msgs):
			changed()
		}
	}
}

// concerned reports whether one of the notices concerns the instance.
func (k *kernel) concerned(msgs []syscall.NetlinkMessage) (is bool) {
	for _, m := range msgs {
		switch m.Header.Type {
		case unix.RTM_NEWADDR, unix.RTM_DELADDR:
			k.changes.suspect.Store(true) // the notice may not have reached that socket yet
			is = true
		case unix.RTM_DELRULE, unix.RTM_DELROUTE:
			is = is || routingTable(m.Data) == instanceNumber(k.instance)
		}
	}
	return is
}

// routingTable returns the routing table of a notice about a rule or a route; 0 if it names none.
// Rules and routes have a header of the same size (struct fib_rule_hdr, struct rtmsg), and the
// number of the table in the attribute of the same type (FRA_TABLE, RTA_TABLE).
func routingTable(body []byte) (table uint32) {
	if len(body) < unix.SizeofRtMsg {
		return 0
	}
	it := rawnl.Attrs(body[unix.SizeofRtMsg:])
	for it.Next() {
		if it.Type() == unix.RTA_TABLE {
			table = it.NativeU32()
		}
	}
	return table
}
