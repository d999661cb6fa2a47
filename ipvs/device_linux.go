package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rtnetlink"
)

func (k *kernel) findDevice(a *addresses) error {
	k.ifindex = 0
	if k.device == "" {
		return nil
	}
	l, err := k.links.LinkByName(k.device)
	if rtnetlink.Gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("device %s: %w", k.device, err)
	}
	if l.Type() != k.kind {
		return fmt.Errorf("device %s is of the type %q: want a %s device", k.device, l.Type(),
			k.kind)
	}

	a.ifindex, a.up = l.Attrs().Index, l.Attrs().Flags&net.FlagUp != 0
	k.ifindex = a.ifindex
	return nil
}

// linkName returns the name of a device, and adds it to the known names. A removed device has an
// empty name.
func (k *kernel) linkName(ifindex int, known map[int]string) (string, error) {
	if name, ok := known[ifindex]; ok {
		return name, nil
	}
	l, err := k.links.LinkByIndex(ifindex)
	switch {
	case err == nil:
		known[ifindex] = l.Attrs().Name
	case rtnetlink.Gone(err):
		known[ifindex] = ""
	default:
		return "", fmt.Errorf("device %d: %w", ifindex, err)
	}

	return known[ifindex], nil
}

// readDevices returns the names of the dummy devices that this instance created, which are the
// devices in its group.
func (k *kernel) readDevices() ([]string, error) {
	links, err := k.links.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var l []string
	for _, link := range links {
		if link.Type() == k.kind && link.Attrs().Group == instanceNumber(k.instance) {
			l = append(l, link.Attrs().Name)
		}
	}

	slices.Sort(l)
	return l, nil
}

// makeDevice creates the device, or configures an existing device.
func (k *kernel) makeDevice() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Group, attrs.Flags = k.device, instanceNumber(k.instance), net.FlagUp
	var l netlink.Link
	err := k.links.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: k.kind})
	if errors.Is(err, syscall.EOPNOTSUPP) {
		err = noModule(k.kind, err)
	}
	if err == nil || errors.Is(err, syscall.EEXIST) {
		l, err = k.links.LinkByName(k.device)
	}
	if err == nil {
		err = k.links.LinkSetUp(l)
	}
	if rtnetlink.Gone(err) {
		err = fmt.Errorf("%w: %w", errMoved, err)
	}
	if err != nil {
		return fmt.Errorf("make device %s: %w", k.device, err)
	}
	k.ifindex = l.Attrs().Index
	return nil
}

// The instance's addresses have its number as their metric (IFA_RT_PRIORITY, since Linux 4.18).
// netlink.Addr does not have this field (github.com/vishvananda/netlink v1.3.1, addr.go). So this
// file builds the two requests that need it: to list addresses and to add an address.

// errMoved says that an address is no longer where it was found.
var errMoved = errors.New("it was moved meanwhile")

// bind binds an address to the device. If the device already has it, the error is [errMoved].
func (k *kernel) bind(a netip.Addr) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	for _, part := range newAddress(a, k.ifindex, instanceNumber(k.instance)) {
		req.AddData(part)
	}
	_, err := k.links.Execute(req, 0)
	if a.Is6() && errors.Is(err, syscall.EACCES) {
		// The process does not lack a permission, so the error is not wrapped.
		err = fmt.Errorf("%w: %v", errDisabled, err)
	}

	return moved("bind", a, k.device, err)
}

// release removes an address from its device. If the device does not have it, the error is
// [errMoved].
func (k *kernel) release(b boundAddr) error {
	bits := b.addr.BitLen()
	err := k.links.AddrDel(b.ifindex, &net.IPNet{IP: b.addr.AsSlice(),
		Mask: net.CIDRMask(bits, bits)})
	return moved("release", b.addr, b.dev, err)
}

// moved wraps an error about an address of a device.
func moved(doing string, a netip.Addr, dev string, err error) error {
	if isOne(err, syscall.EEXIST, syscall.EADDRNOTAVAIL, syscall.ENODEV) {
		err = fmt.Errorf("%w: %w", errMoved, err)
	}
	if err != nil {
		return fmt.Errorf("%s address %v, device %s: %w", doing, a, dev, err)
	}
	return nil
}

// readAddresses reads the addresses of the namespace, and finds the device. A device that is not a
// dummy is an error.
func (k *kernel) readAddresses() (addresses, error) {
	k.changes.Listing()
	a, err := k.listAddresses()
	if err != nil {
		k.changes.Suspect()
	}
	return a, err
}

func (k *kernel) listAddresses() (a addresses, err error) {
	if err := k.findDevice(&a); err != nil {
		return a, err
	}
	held, err := k.links.Indices(rtnetlink.ServiceDevices)
	if err != nil {
		return a, err
	}
	if a.ifindex != 0 {
		held = append(held, a.ifindex)
	}

	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	msgs, err := k.links.Execute(req, unix.RTM_NEWADDR)
	if err != nil {
		return a, fmt.Errorf("list addresses: %w", err)
	}
	names := map[int]string{a.ifindex: k.device}
	for _, m := range msgs {
		if err := k.sortAddress(&a, m, held, names); err != nil {
			return a, err
		}
	}

	for _, l := range []*[]netip.Addr{&a.node, &a.others} {
		slices.SortFunc(*l, netip.Addr.Compare)
		*l = slices.Compact(*l)
	}

	slices.SortFunc(a.bound, compareBound)
	return a, nil
}

// sortAddress adds the address of a message to our addresses or to those of other programs. An
// address that a load balancer bound for a service is not a node address: held are the devices of
// load balancers, and other instances of this backend mark their addresses.
func (k *kernel) sortAddress(a *addresses, msg []byte, held []int, names map[int]string) error {
	l, err := decodeAddress(msg)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	switch {
	case !l.addr.IsValid():
	case l.metric == instanceNumber(k.instance):
		dev, err := k.linkName(l.ifindex, names)
		if err != nil {
			return err
		}
		if dev != "" {
			a.bound = append(a.bound, boundAddr{l.addr, l.ifindex, dev})
		}
	case l.addr.IsLinkLocalUnicast() && l.addr.Is6(): // every link has one, so it does not count
	default:
		if k.device != "" {
			a.others = append(a.others, l.addr)
		}
		ofService := slices.Contains(held, l.ifindex) || isInstanceNumber(l.metric)
		if !ofService && !l.addr.IsLoopback() && !l.addr.IsLinkLocalUnicast() {
			a.node = append(a.node, l.addr)
		}
	}

	return nil
}

// newAddress is the body of RTM_NEWADDR that binds an address of a service. Its metric marks it as
// ours. IPv4 addresses have host scope, and IPv6 addresses are deprecated from the start, so that
// the kernel never chooses them as the source of packets to other destinations (inet_select_addr,
// ipv6_get_saddr_eval).
func newAddress(a netip.Addr, ifindex int, metric uint32) []nl.NetlinkRequestData {
	family, scope, flags := unix.AF_INET, unix.RT_SCOPE_HOST, uint32(unix.IFA_F_NOPREFIXROUTE)
	if a.Is6() {
		family, scope = unix.AF_INET6, unix.RT_SCOPE_UNIVERSE
		flags |= unix.IFA_F_NODAD
	}

	msg := nl.NewIfAddrmsg(family)
	msg.Prefixlen, msg.Scope, msg.Index = uint8(a.BitLen()), uint8(scope), uint32(ifindex)
	l := []nl.NetlinkRequestData{msg, nl.NewRtAttr(unix.IFA_LOCAL, a.AsSlice()),
		nl.NewRtAttr(unix.IFA_ADDRESS, a.AsSlice()),
		nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags))}
	if a.Is6() {
		lifetimes := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Valid: math.MaxUint32}}
		l = append(l, nl.NewRtAttr(unix.IFA_CACHEINFO, lifetimes.Serialize()))
	}

	return append(l, nl.NewRtAttr(unix.IFA_RT_PRIORITY, nl.Uint32Attr(metric)))
}

// listedAddr is an address that any program has bound.
type listedAddr struct {
	addr    netip.Addr
	ifindex int
	metric  uint32
}

// decodeAddress decodes the body of RTM_NEWADDR. The address is invalid if the message has no IPv4
// or IPv6 address.
func decodeAddress(b []byte) (l listedAddr, err error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return l, fmt.Errorf("an address of %d bytes", len(b))
	}
	l.ifindex = int(binary.NativeEndian.Uint32(b[4:]))
	var addr, local []byte
	it := rawnl.Attrs(b[unix.SizeofIfAddrmsg:])
	for it.Next() {
		switch it.Type() {
		case unix.IFA_ADDRESS:
			addr = it.Data()
		case unix.IFA_LOCAL:
			local = it.Data()
		case unix.IFA_RT_PRIORITY:
			l.metric = it.NativeU32()
		}
	}

	if local != nil { // on a link between two ends, IFA_ADDRESS is the peer's address
		addr = local
	}
	if a, ok := netip.AddrFromSlice(addr); ok && (b[0] == unix.AF_INET) == a.Is4() {
		l.addr = a
	}
	return l, it.Err()
}
