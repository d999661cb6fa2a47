package nodeaddrs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/rtnetlink"

	"github.com/kernlb/kernlb/internal/threadns"
)

// kernel lists addresses.
type kernel struct {
	ns      *threadns.NS
	links   *rtnetlink.Conn
	changes rtnetlink.Addresses
	known   []netip.Addr // the addresses at the last listing
}

func (k *kernel) open(cfg *Config) (err error) {
	if k.ns, err = threadns.Open(cfg.NetNS); err != nil {
		return err
	}
	if err = k.changes.Open(k.ns); err == nil {
		k.links, err = rtnetlink.Open(k.ns)
	}
	if err != nil {
		return errors.Join(err, k.close())
	}
	return nil
}

func (k *kernel) close() error {
	k.links.Close()
	k.changes.Close()
	return k.ns.Close()
}

// current returns the addresses. It lists them only if they may have changed.
func (k *kernel) current(except []string) ([]netip.Addr, error) {
	if !k.changes.Look() {
		return k.known, nil
	}
	k.changes.Listing()
	l, err := k.list(except)
	if err != nil {
		k.changes.Suspect()
		return nil, err
	}

	k.known = l
	return l, nil
}

// list lists the addresses that other machines can reach.
func (k *kernel) list(except []string) ([]netip.Addr, error) {
	skip, err := k.links.Indices(slices.Concat(except, rtnetlink.ServiceDevices))
	if err != nil {
		return nil, err
	}
	all, err := k.links.AddrList()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var good, deprecated []netip.Addr
	for _, a := range all {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		switch {
		case !ok, !addr.IsGlobalUnicast(), slices.Contains(skip, a.LinkIndex),
			addr.Is4() && a.Scope == unix.RT_SCOPE_HOST,
			a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0:
		case a.Flags&unix.IFA_F_DEPRECATED != 0:
			deprecated = append(deprecated, addr)
		default:
			good = append(good, addr)
		}
	}

	return append(good, deprecated...), nil
}

// Watch calls changed when the addresses differ from those of the last Complete, until ctx is done.
func (s *Source) Watch(ctx context.Context, changed func()) error {
	k := &s.kernel
	socket, err := rtnetlink.Subscribe(k.ns, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return fmt.Errorf("follow the addresses of the node: %w", err)
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, socket.Close)()
	if s.changed() { // changed before the socket was open
		changed()
	}
	for {
		_, from, err := socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, unix.ENOBUFS): // the socket's buffer is full
			return fmt.Errorf("follow the addresses of the node: %w", err)
		case err == nil && from.Pid != nl.PidKernel:
			continue
		}

		k.changes.Suspect() // the notice may not have reached that socket yet
		if s.changed() {
			changed()
		}
	}
}
