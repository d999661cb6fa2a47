package ipvs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Watch calls changed when addresses come or go, since node ports are virtual servers at each of
// the node's, and when a rule or a route of ours goes, without which no packet is led to IPVS:
// programs that manage networks remove rules that they do not know. It makes Backend a
// [dataplane.Watcher].
//
// [dataplane.Watcher]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane#Watcher
func (b *Backend) Watch(ctx context.Context, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: b.net.ns.FD()})
	if err != nil {
		return fmt.Errorf("ipvs: watch the network: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	for _, group := range []uint32{unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE} {
		err = errors.Join(err, conn.JoinGroup(group))
	}
	if err != nil {
		return fmt.Errorf("ipvs: watch the network: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		// nolint:errcheck // fails only if the connection is closed
		conn.SetReadDeadline(time.Unix(1, 0))
	})()
	for {
		msgs, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // more than the socket can hold
			b.net.events.suspect.Store(true)
			changed()
		case err != nil:
			return fmt.Errorf("ipvs: watch the network: %w", err)
		default:
			b.notice(msgs, changed)
		}
	}
}

// notice calls changed if one of the messages matters.
func (b *Backend) notice(msgs []netlink.Message, changed func()) {
	matters := false
	for _, m := range msgs {
		switch uint16(m.Header.Type) {
		case unix.RTM_NEWADDR, unix.RTM_DELADDR:
			b.net.events.suspect.Store(true) // the notice may not have reached that socket yet
			matters = true
		case unix.RTM_DELRULE, unix.RTM_DELROUTE:
			matters = matters || routingTable(m.Data) == b.net.number
		}
	}
	if matters {
		changed()
	}
}
