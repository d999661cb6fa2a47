package ipvs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// request sends one request about an address.
func (n *network) request(msg, flags int, body []byte) ([][]byte, error) {
	req := nl.NewNetlinkRequest(msg, flags)
	req.AddRawData(body)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: n.socket}
	return req.Execute(unix.NETLINK_ROUTE, rtmNewAddr)
}

// listTries is how often the addresses are read again because they change meanwhile.
const listTries = 8

func (n *network) list() (msgs [][]byte, err error) {
	for range listTries {
		if msgs, err = n.request(rtmGetAddr, unix.NLM_F_DUMP, make([]byte, 8)); !errors.Is(err,
			netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return msgs, nil
}

// changed reports whether addresses or devices may have changed since they were listed last.
func (n *network) changed() bool { return n.events.look() }

// addresses reads the addresses of the namespace, and looks for the device. A device that is not a
// dummy is an error.
func (n *network) addresses() (*addresses, error) {
	n.events.look()
	n.events.suspect.Store(false) // what is noticed from here on may not be in the list
	f, err := n.listAll()
	if err != nil {
		n.events.suspect.Store(true)
	}
	return f, err
}

func (n *network) listAll() (*addresses, error) {
	f := &addresses{}
	if err := n.findDevice(f); err != nil {
		return nil, err
	}
	msgs, err := n.list()
	if err != nil {
		return nil, err
	}
	name := n.names(f.index)
	for _, m := range msgs {
		h, err := decodeAddress(m)
		if err != nil {
			return nil, fmt.Errorf("list addresses: %w", err)
		}
		if !h.addr.IsValid() || h.addr.IsLinkLocalUnicast() {
			continue
		}
		if h.metric == n.number {
			dev, err := name(h.index)
			if err != nil {
				return nil, err
			}
			if dev == "" {
				continue
			}
			f.holding = append(f.holding, boundAddr{h.addr, h.index, dev})
			continue
		}
		if n.device != "" {
			f.others = append(f.others, h.addr)
		}
		if !h.addr.IsLoopback() && (f.index == 0 || h.index != f.index) {
			f.node = append(f.node, h.addr)
		}
	}
	for _, l := range []*[]netip.Addr{&f.node, &f.others} {
		slices.SortFunc(*l, netip.Addr.Compare)
		*l = slices.Compact(*l)
	}
	slices.SortFunc(f.holding, compareBound)
	return f, nil
}

// findDevice looks for the configured device.
func (n *network) findDevice(f *addresses) error {
	n.index = 0
	if n.device == "" {
		return nil
	}
	l, err := n.handle.LinkByName(n.device)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("device %s: %w", n.device, err)
	}
	if l.Type() != "dummy" {
		return fmt.Errorf("device %s is of the type %q: want a dummy device", n.device, l.Type())
	}
	f.index, f.up = l.Attrs().Index, l.Attrs().Flags&net.FlagUp != 0
	n.index = f.index
	return nil
}

// names returns the names of devices by index, as they are asked for. A device that is gone has
// none.
func (n *network) names(holder int) func(index int) (string, error) {
	known := map[int]string{holder: n.device}
	return func(index int) (string, error) {
		if name, ok := known[index]; ok {
			return name, nil
		}
		l, err := n.handle.LinkByIndex(index)
		switch {
		case err == nil:
			known[index] = l.Attrs().Name
		case errors.As(err, &netlink.LinkNotFoundError{}):
			known[index] = ""
		default:
			return "", fmt.Errorf("device %d: %w", index, err)
		}
		return known[index], nil
	}
}

// made returns the names of the dummy devices that this instance made: they are in its group.
func (n *network) made() ([]string, error) {
	links, err := n.handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var l []string
	for _, link := range links {
		if link.Type() == "dummy" && link.Attrs().Group == n.number {
			l = append(l, link.Attrs().Name)
		}
	}
	slices.Sort(l)
	return l, nil
}

// makeDevice makes the device, or sets it up.
func (n *network) makeDevice() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Group, attrs.Flags = n.device, n.number, net.FlagUp
	err := n.handle.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, syscall.EOPNOTSUPP) {
		err = noModule("dummy", err)
	}
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("make device %s: %w", n.device, err)
	}
	l, err := n.handle.LinkByName(n.device)
	if err == nil {
		err = n.handle.LinkSetUp(l)
	}
	if err != nil {
		return fmt.Errorf("set up device %s: %w", n.device, err)
	}
	n.index = l.Attrs().Index
	return nil
}

// removeDevice deletes a device, with its addresses.
func (n *network) removeDevice(name string) error {
	l, err := n.handle.LinkByName(name)
	if err == nil {
		err = n.handle.LinkDel(l)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		return fmt.Errorf("remove device %s: %w", name, err)
	}
	return nil
}

// bind binds an address to the device. That it is there already is [errMoved].
func (n *network) bind(a netip.Addr) error {
	_, err := n.request(rtmNewAddr, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		newAddress(a, n.index, n.number))
	return moved("bind", a, n.device, err)
}

// release takes an address away from its device. That it is not there is [errMoved].
func (n *network) release(h boundAddr) error {
	_, err := n.request(rtmDelAddr, unix.NLM_F_ACK, delAddress(h.addr, h.index))
	return moved("release", h.addr, h.dev, err)
}

func moved(doing string, a netip.Addr, dev string, err error) error {
	for _, e := range []error{syscall.EEXIST, syscall.EADDRNOTAVAIL, syscall.ENODEV} {
		if errors.Is(err, e) {
			err = fmt.Errorf("%w: %w", errMoved, err)
		}
	}
	if err != nil {
		return fmt.Errorf("%s address %v, device %s: %w", doing, a, dev, err)
	}
	return nil
}
