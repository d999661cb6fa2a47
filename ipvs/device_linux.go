package ipvs

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/internal/rtnetlink"
)

// findDevice finds the configured device.
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

// linkName returns the name of a device, and adds it to the known names. A device that is gone has
// an empty name.
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

// readDevices returns the names of the dummy devices that this instance made: they are in its
// group.
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

// makeDevice makes the device, or sets an existing one up.
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
