package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rtnetlink"
)

// Marks of kernlb's ipvs backend (ipvs/layout.go): bits in the flags of its virtual servers (the
// kernel uses only the low half), and the group of devices that it created.
const (
	kernlbFlags     = 0xffff0000
	kernlbGroup     = 0x6b000000
	kernlbGroupMask = 0xffff0000
)

// readVirtual reads the objects of the ipvs mode.
func (k *kernel) readVirtual(ctx context.Context) (*virtual, error) {
	v := &virtual{sets: map[string]map[VirtualServer]bool{}, local: map[netip.Addr]bool{}}
	if err := k.readSets(ctx, v); err != nil {
		return nil, err
	}
	if err := k.readDevice(v); err != nil {
		return nil, err
	}
	var err error
	v.servers, err = k.readServers(ctx)
	return v, err
}

// readServers returns the virtual servers at addresses, except kernlb's.
func (k *kernel) readServers(ctx context.Context) (servers []VirtualServer, err error) {
	err = k.withIPVS(ctx, func(c *ipvsnl.Client) error {
		services, err := c.Services(ctx)
		for _, s := range services {
			if s.FWMark == 0 && s.Flags&kernlbFlags == 0 {
				servers = append(servers, VirtualServer{s.Protocol.String(),
					netip.AddrPortFrom(s.Addr, s.Port)})
			}
		}

		return err
	})
	return servers, err
}

// key returns the key of a virtual server in IPVS.
func (v VirtualServer) key() ipvsnl.ServiceKey {
	protocols := map[string]ipvsnl.Protocol{"TCP": ipvsnl.TCP, "UDP": ipvsnl.UDP,
		"SCTP": ipvsnl.SCTP}
	return ipvsnl.AddressService(protocols[v.Protocol], v.Address)
}

// withIPVS calls fn with a client of IPVS, if the kernel has loaded IPVS.
func (k *kernel) withIPVS(ctx context.Context, fn func(*ipvsnl.Client) error) error {
	err := k.ns.Do(func() error {
		_, err := os.Stat("/proc/thread-self/net/ip_vs")
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for IPVS: %w", err)
	}
	c, err := ipvsnl.Dial(ctx, &rawnl.Config{NetNS: k.ns.NetNS(), Logger: k.log})
	if err != nil {
		return err
	}
	return errors.Join(fn(c), c.Close())
}

// readDevice reads the addresses of the node, and the device. kube-proxy adds addresses without any
// flags; addresses with IFA_F_NOPREFIXROUTE are kernlb's. The kernel gives a device that is up a
// link-local address.
func (k *kernel) readDevice(v *virtual) error {
	index := 0
	link, err := k.links.LinkByName(device)
	switch {
	case err == nil:
		a := link.Attrs()
		index = a.Index
		v.device = &dummy{kind: link.Type(), kernlb: a.Group&kernlbGroupMask == kernlbGroup,
			addresses: map[netip.Addr]bool{}}
	case !rtnetlink.Gone(err):
		return fmt.Errorf("look for device %s: %w", device, err)
	}

	addrs, err := k.links.AddrList()
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		addr, _ := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		switch {
		case a.LinkIndex != index:
			v.local[addr] = true
		case a.Flags&unix.IFA_F_NOPREFIXROUTE != 0:
			v.device.foreign = addr
		case a.Scope != unix.RT_SCOPE_LINK:
			v.device.addresses[addr] = true
		}
	}

	return nil
}

// deleteServers deletes the virtual servers of a plan. If a server could not be deleted, it removes
// the server, the device and the sets from the plan, because the next cleanup recognises the server
// by the device and the sets. A server that another program has already deleted is not an error.
func (k *kernel) deleteServers(ctx context.Context, p *Plan) error {
	if len(p.VirtualServers) == 0 {
		return nil
	}
	var ops []ipvsnl.Op
	for _, s := range p.VirtualServers {
		ops = append(ops, ipvsnl.DelService(s.key()))
	}
	err := k.withIPVS(ctx, func(c *ipvsnl.Client) error {
		return rawnl.Except(c.Submit(ctx, ops...), unix.ESRCH)
	})
	if err == nil {
		return nil
	}
	p.Device, p.Sets = "", nil
	list, readErr := k.readServers(context.WithoutCancel(ctx))
	left := map[VirtualServer]bool{}
	for _, s := range list {
		left[s] = true
	}
	p.VirtualServers = slices.DeleteFunc(p.VirtualServers, func(s VirtualServer) bool {
		return readErr != nil || left[s]
	})
	return err
}

// virtual holds the objects of the ipvs mode.
type virtual struct {
	// without kernlb's, and without virtual servers by mark
	servers []VirtualServer
	sets    map[string]map[VirtualServer]bool // the entries of each IP set; ports have no address
	device  *dummy                            // nil if missing
	local   map[netip.Addr]bool               // addresses of the node, without the device's
}

// dummy is the device with the addresses of services.
type dummy struct {
	kind      string // of a link: "dummy"
	kernlb    bool   // an instance of kernlb created it
	addresses map[netip.Addr]bool
	foreign   netip.Addr // an address that kube-proxy did not bind, if valid
}

// planVirtual adds the objects of the ipvs mode to a plan.
func (p *Plan) planVirtual(v *virtual) {
	switch d := v.device; {
	case d == nil:
	case d.kind != "dummy":
		p.leave("device "+device, "it is of the type %q, which kube-proxy does not make", d.kind)
	case d.kernlb:
		p.leave("device "+device, "an instance of kernlb's ipvs backend made it")
	case d.foreign.IsValid():
		p.leave("device "+device, "it has the address %v, which kube-proxy did not bind", d.foreign)
	default:
		p.Device = device
	}

	for _, s := range v.servers {
		if v.owns(s) {
			p.VirtualServers = append(p.VirtualServers, s)
		}
	}

	slices.SortFunc(p.VirtualServers, VirtualServer.compare)
	for _, name := range setNames() {
		if _, ok := v.sets[name]; ok {
			p.Sets = append(p.Sets, name)
		}
	}
}

// owns reports whether a virtual server is kube-proxy's. kube-proxy lists its virtual servers in
// its IP sets. A virtual server at an address of its device is also kube-proxy's, because
// kube-proxy may have been stopped before it listed the server.
func (v *virtual) owns(s VirtualServer) bool {
	addr := s.Address.Addr()
	return v.device != nil && !v.device.kernlb && v.device.addresses[addr] ||
		slices.ContainsFunc(addressSets, func(set string) bool { return v.has(set, addr, s) }) ||
		v.nodePort(s)
}

// has reports whether a set of the family of an address has an entry.
func (v *virtual) has(set string, addr netip.Addr, entry VirtualServer) bool {
	if addr.Is6() {
		set = setName6(set)
	}
	return v.sets[set][entry]
}

// nodePort reports whether a virtual server belongs to a node port at an address of the node.
func (v *virtual) nodePort(s VirtualServer) bool {
	addr := s.Address.Addr()
	if !v.local[addr] {
		return false
	}
	set, ok := portSets[s.Protocol]
	port := VirtualServer{Address: netip.AddrPortFrom(netip.Addr{}, s.Address.Port())}
	return ok && v.has(set, addr, port) || v.has(sctpSet, addr, s)
}
