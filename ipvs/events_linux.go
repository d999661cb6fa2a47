package ipvs

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// events says whether addresses or devices may have changed, so that thousands of them need not be
// listed to know that none has. The kernel queues the notice of a change before who makes the
// change has an answer; of a new IPv6 address, when it is usable.
type events struct {
	socket  *nl.NetlinkSocket
	suspect atomic.Bool // there may have been changes since the addresses were listed last
}

func (e *events) open(ns int) (err error) {
	e.suspect.Store(true)
	e.socket, err = nl.SubscribeAt(netns.NsHandle(ns), netns.None(), unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("subscribe to changes of addresses: %w", err)
	}
	return nil
}

func (e *events) close() {
	if e.socket != nil {
		e.socket.Close()
	}
}

// look takes all notices that are there, and reports whether there may have been changes. What they
// say is not of interest.
func (e *events) look() bool {
	var b [1]byte
	for {
		_, _, err := unix.Recvfrom(e.socket.GetFd(), b[:], unix.MSG_DONTWAIT)
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS): // more than the socket can hold
			e.suspect.Store(true)
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return e.suspect.Load()
		default:
			e.suspect.Store(true)
			return true
		}
	}
}
