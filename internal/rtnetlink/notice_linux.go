package rtnetlink

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/threadns"
)

// Subscribe opens a socket that gets the notices of groups of rtnetlink. AddrSubscribe,
// LinkSubscribe and RouteSubscribe of vishvananda/netlink do not suffice: they do not support
// rules, they do not distinguish an overrun from other errors, and they deliver notices from
// another goroutine, so the next [Addresses.Look] could miss an earlier change.
func Subscribe(ns *threadns.NS, groups ...uint) (*nl.NetlinkSocket, error) {
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

// Addresses knows whether addresses or links may have changed. If nothing has changed, thousands of
// addresses need not be listed. The kernel queues the notice of a change before it answers the
// program that made the change. It queues the notice of a new IPv6 address when the address is
// usable.
type Addresses struct {
	socket  *nl.NetlinkSocket
	suspect atomic.Bool // there may have been changes since the addresses were listed last
}

// Open opens the subscription. Until the first [Addresses.Listing], the addresses may have changed.
func (a *Addresses) Open(ns *threadns.NS) (err error) {
	a.suspect.Store(true)
	a.socket, err = Subscribe(ns, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR)
	return err
}

// Close ends the subscription, if there is one.
func (a *Addresses) Close() {
	if a.socket != nil {
		a.socket.Close()
	}
}

// Suspect says that addresses may have changed, if the caller noticed a change in another way.
func (a *Addresses) Suspect() { a.suspect.Store(true) }

// Listing says that the caller is about to list addresses. The list may lack changes made after the
// call. If the caller then cannot list them, it must call [Addresses.Suspect].
func (a *Addresses) Listing() {
	a.Look()
	a.suspect.Store(false)
}

// Look discards all waiting notices, and reports whether there may have been changes since the last
// [Addresses.Listing].
func (a *Addresses) Look() bool {
	var b [1]byte
	for {
		_, _, err := unix.Recvfrom(a.socket.GetFd(), b[:], unix.MSG_DONTWAIT)
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS): // a notice, or more than the socket can hold
			a.suspect.Store(true)
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return a.suspect.Load()
		default:
			a.suspect.Store(true)
			return true
		}
	}
}
