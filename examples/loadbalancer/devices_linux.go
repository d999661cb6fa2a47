package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// metric marks the addresses that this program has bound. The kernel keeps the metric in both
// families, and it has no meaning for an address without a prefix route. netlink.Addr lacks it
// (github.com/vishvananda/netlink v1.3.1, addr.go), so this file makes these requests itself.
const metric = 0x6b6c6264 // "klbd"

// bound is an address on a device.
type bound struct {
	addr netip.Addr
	link int
}

// haveDevice returns an error if a device does not exist.
func haveDevice(name string) error {
	_, err := netlink.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return fmt.Errorf("there is no network device %q", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// syncDevices makes devices hold exactly the wanted addresses, among those that this program bound
// now or earlier. It leaves addresses of other programs alone.
func syncDevices(want map[netip.Addr]string, log *slog.Logger) error {
	ours, others, err := listAddresses()
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range slices.SortedFunc(maps.Keys(want), netip.Addr.Compare) {
		link, err := netlink.LinkByName(want[a])
		if err != nil {
			errs = append(errs, fmt.Errorf("bind %s: device %s: %w", a, want[a], err))
			continue
		}

		b := bound{a, link.Attrs().Index}
		if !ours[b] && !others[b] {
			if err := bind(b, want[a]); err != nil {
				errs = append(errs, err)
			} else {
				log.Info("address bound", "address", a, "device", want[a])
			}
		}
		delete(ours, b)
	}

	for b := range ours {
		bits := b.addr.BitLen()
		err := netlink.AddrDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: b.link}},
			&netlink.Addr{IPNet: &net.IPNet{IP: b.addr.AsSlice(), Mask: net.CIDRMask(bits, bits)}})
		if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("release %s: %w", b.addr, err))
		}
	}

	return errors.Join(errs...)
}

// bind adds an address to a device, without a prefix route and without duplicate address detection.
// So the address works at once, and other hosts that balance for it may have it, too.
func bind(b bound, device string) error {
	family := unix.AF_INET
	flags := uint32(unix.IFA_F_NOPREFIXROUTE)
	if b.addr.Is6() {
		family, flags = unix.AF_INET6, flags|unix.IFA_F_NODAD
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Prefixlen, msg.Index = uint8(b.addr.BitLen()), uint32(b.link)
	req := nl.NewNetlinkRequest(unix.RTM_NEWADDR,
		unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, b.addr.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, b.addr.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags)))
	req.AddData(nl.NewRtAttr(unix.IFA_RT_PRIORITY, nl.Uint32Attr(metric)))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("bind %s: device %s: %w", b.addr, device, err)
	}
	return nil
}

// listAddresses returns the addresses that this program bound, and other programs' addresses.
func listAddresses() (ours, others map[bound]bool, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	ours, others = map[bound]bool{}, map[bound]bool{}
	for _, m := range msgs {
		b, mark, err := decodeAddress(m)
		if err != nil {
			return nil, nil, fmt.Errorf("list addresses: %w", err)
		}
		if mark == metric {
			ours[b] = true
		} else {
			others[b] = true
		}
	}

	return ours, others, nil
}

// decodeAddress decodes the body of RTM_NEWADDR.
func decodeAddress(msg []byte) (b bound, mark uint32, err error) {
	if len(msg) < unix.SizeofIfAddrmsg {
		return b, 0, fmt.Errorf("an address of %d bytes", len(msg))
	}
	attrs, err := nl.ParseRouteAttr(msg[unix.SizeofIfAddrmsg:])
	if err != nil {
		return b, 0, err
	}
	b.link = int(binary.NativeEndian.Uint32(msg[4:]))
	var local netip.Addr
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFA_ADDRESS:
			b.addr, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_LOCAL: // the address; IFA_ADDRESS may be the peer's
			local, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_RT_PRIORITY:
			if len(a.Value) == 4 {
				mark = binary.NativeEndian.Uint32(a.Value)
			}
		}
	}

	if local.IsValid() {
		b.addr = local
	}
	return b, mark, nil
}
