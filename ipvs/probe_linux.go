package ipvs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// probeKernel asks the kernel, in a network namespace, for IPVS, then for the kind of link that holds the addresses.
func probeKernel(ctx context.Context, netns int) error {
	if err := probeIPVS(ctx, netns); err != nil {
		return err
	}
	return probeDummy(netns)
}

// probeIPVS looks for the generic netlink family, which anybody may, and asks for its version, which shows whether more is permitted.
func probeIPVS(ctx context.Context, netns int) error {
	c, err := ipvsnl.Dial(ctx, &ipvsnl.Config{NetNS: netns})
	if errors.Is(err, ipvsnl.ErrNotSupported) {
		return noModule("ip_vs", err)
	}
	if err != nil {
		return explain(err)
	}
	defer c.Close()
	_, err = c.Info(ctx)
	return explain(err)
}

func explain(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: IPVS takes CAP_NET_ADMIN in the initial user namespace: %w", dataplane.ErrNoPermission, err)
	}
	return err
}

// noModule says that the kernel lacks a module, or how to load it: before Linux 5.16, ip_vs does not say which family it is, and a process
// without CAP_SYS_MODULE cannot make the kernel load it.
func noModule(module string, err error) error {
	if installed(module) {
		return fmt.Errorf("%w %s: it is installed but not loaded, and this process cannot have it loaded: load module %s (modprobe %s): %w",
			dataplane.ErrMissingModule, module, module, module, err)
	}
	return fmt.Errorf("%w %s: %w", dataplane.ErrMissingModule, module, err)
}

// installed reports whether the running kernel has a module's file, as far as can be seen from here: in a container often nothing is.
func installed(module string) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	list, err := os.ReadFile("/lib/modules/" + unix.ByteSliceToString(u.Release[:]) + "/modules.dep")
	return err == nil && bytes.Contains(list, []byte("/"+module+".ko"))
}

// probeDummy asks for a link of kind dummy that cannot be made: its address is a group's, which the kind refuses (dummy_validate in
// drivers/net/dummy.c) after the kernel has found, or loaded, the kind, and before it makes anything.
func probeDummy(netns int) error {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: netns})
	if err != nil {
		return explain(fmt.Errorf("open a route netlink socket: %w", err))
	}
	defer c.Close()
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_NEWLINK, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl},
		Data:   append(make([]byte, unix.SizeofIfInfomsg), impossibleDummy()...),
	})
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil
	case errors.Is(err, syscall.EOPNOTSUPP):
		return noModule("dummy", fmt.Errorf("add a link of kind dummy: %w", err))
	case err == nil:
		return errors.New("the kernel made a link whose address is a group's")
	}
	return explain(fmt.Errorf("add a link of kind dummy: %w", err))
}

// impossibleDummy are the attributes of the link.
func impossibleDummy() []byte {
	e := netlink.NewAttributeEncoder()
	e.String(unix.IFLA_IFNAME, "kernlb-probe")
	e.Bytes(unix.IFLA_ADDRESS, []byte{1, 0, 0, 0, 0, 0})
	e.Nested(unix.IFLA_LINKINFO, func(e *netlink.AttributeEncoder) error {
		e.String(unix.IFLA_INFO_KIND, "dummy")
		return nil
	})
	b, err := e.Encode()
	if err != nil { // there is nothing in it that cannot be encoded
		return nil
	}
	return b
}
