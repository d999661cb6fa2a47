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
// LinkSubscribe and RouteSubscribe of vishvananda/netlink would not do: there is none for rules,
// they do not tell an overrun from other errors, and they deliver from a goroutine of their own,
// while a change that was made must be seen by the next look.
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

// Addresses says whether addresses or links may have changed, so that thousands of addresses need
// not be listed to know that none has. The kernel queues the notice of a change before who makes
// the change has an answer; of a new IPv6 address, when it is usable.
type Addresses struct {
	socket  *nl.NetlinkSocket
	suspect atomic.Bool // there may have been changes since the addresses were listed last
}

// Open begins: nothing is known of the addresses.
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

// Suspect says that there may have been changes, which somebody else has noticed.
func (a *Addresses) Suspect() { a.suspect.Store(true) }

// Listing says that addresses are about to be listed: later changes may not be in the list. Who
// cannot list them says [Addresses.Suspect].
func (a *Addresses) Listing() {
	a.Look()
	a.suspect.Store(false)
}

// Look takes all notices that are there, and reports whether there may have been changes since the
// last [Addresses.Listing]. What they say is not of interest.
func (a *Addresses) Look() bool {
	var b [1]byte
	for {
		_, _, err := unix.Recvfrom(a.socket.GetFd(), b[:], unix.MSG_DONTWAIT)
		switch {
		case err == nil, errors.Is(err, unix.ENOBUFS): // more than the socket can hold
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
