package ipvs

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rtnetlink"
)

// Watch calls changed when addresses are added or removed, because node ports need a virtual server
// at each address of the node. It also calls changed when a rule or a route of ours is deleted,
// because without these no packet reaches IPVS: network managers remove rules that they do not
// know. Watch makes the backend a [backends.Watcher].
//
// [backends.Watcher]: https://pkg.go.dev/github.com/kernlb/kernlb/dataplane/backends#Watcher
func (b *backend) Watch(ctx context.Context, changed func()) error {
	k := &b.kernel
	socket, err := rtnetlink.Subscribe(k.ns, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
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
		case errors.Is(err, unix.ENOBUFS): // more than the socket's buffer can hold
			k.changes.Suspect()
			changed()
		case err != nil:
			return fmt.Errorf("ipvs: watch the network: %w", err)
		case from.Pid != nl.PidKernel:
			continue
		}

		concerned := false
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.RTM_NEWADDR, unix.RTM_DELADDR:
				k.changes.Suspect() // the notice may not have reached that socket yet
				concerned = true
			case unix.RTM_DELRULE, unix.RTM_DELROUTE:
				concerned = concerned || routingTable(m.Data) == instanceNumber(k.instance)
			}
		}

		if concerned {
			changed()
		}
	}
}

// routingTable returns the routing table in a notice about a rule or a route, or 0 if it has no
// table. Rules and routes have a header of the same size (struct fib_rule_hdr, struct rtmsg), and
// the number of the table in an attribute of the same type (FRA_TABLE, RTA_TABLE).
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

// Blame waits until another program changes the companion tables, and returns that program. The
// kernel does not report changes of virtual servers. Blame makes the backend a [backends.Blamer].
func (b *backend) Blame(ctx context.Context) (backends.Program, error) {
	k := &b.kernel
	g, err := nft.Author(ctx, k.ns, k.nf, func(c nft.Changed) bool {
		return c.Table == b.kernel.table
	})
	if err != nil {
		return backends.Program{}, fmt.Errorf("ipvs: blame: %w", err)
	}
	return backends.Program{Name: g.ProcName, Thread: g.ProcPID}, nil
}
