package ipvs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Watch calls changed when addresses come or go, since node ports are virtual servers at each of the node's: it makes Backend a [dataplane.Watcher].
//
// [dataplane.Watcher]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane#Watcher
func (b *Backend) Watch(ctx context.Context, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: b.net.ns.FD()})
	if err != nil {
		return fmt.Errorf("ipvs: watch addresses: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	if err := errors.Join(conn.JoinGroup(unix.RTNLGRP_IPV4_IFADDR), conn.JoinGroup(unix.RTNLGRP_IPV6_IFADDR)); err != nil {
		return fmt.Errorf("ipvs: watch addresses: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		conn.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // fails only if the connection is closed
	})()
	for {
		_, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, errors.Is(err, unix.ENOBUFS): // more than the socket can hold
			b.net.events.suspect.Store(true) // the notice may not have reached that socket yet
			changed()
		default:
			return fmt.Errorf("ipvs: watch addresses: %w", err)
		}
	}
}
