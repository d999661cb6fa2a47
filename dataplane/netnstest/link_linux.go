package netnstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/wait"
)

// wiring configures links, addresses, routes and neighbours of many namespaces. After the first
// error, which is in err, all methods do nothing, so that the topology reads like a list.
type wiring struct {
	handles  map[*NS]*netlink.Handle
	ends     map[iface]end
	settling []iface // except bridges: a bridge without ports never comes up
	locals   []local // IPv6 addresses
	macs     uint16
	err      error
}

// iface names an interface of a namespace.
type iface struct {
	ns   *NS
	name string
}

// local is an address of a namespace.
type local struct {
	ns   *NS
	addr netip.Addr
}

// end is the kernel's index of one end of a link, and its hardware address.
type end struct {
	index int
	mac   net.HardwareAddr
}

func newWiring() *wiring {
	return &wiring{handles: map[*NS]*netlink.Handle{}, ends: map[iface]end{}}
}

func (w *wiring) close() {
	for _, h := range w.handles {
		h.Close()
	}
}

// do runs a step unless an earlier step failed, and names the step in its error. Each namespace has
// one netlink socket.
func (w *wiring) do(ns *NS, step func(*netlink.Handle) error, format string, args ...any) {
	if w.err != nil {
		return
	}
	var err error
	h := w.handles[ns]
	if h == nil {
		h, err = netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
		if err == nil {
			w.handles[ns] = h
		}
	}

	if err == nil {
		err = step(h)
	}
	if err != nil {
		w.err = fmt.Errorf("netnstest: %s: %s: %w", ns.name, fmt.Sprintf(format, args...), err)
	}
}

// mac returns a locally administered hardware address that no other link of this wiring has.
func (w *wiring) mac(side byte) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0, 0, side, byte(w.macs >> 8), byte(w.macs)}
}

// veth joins two namespaces by a pair of interfaces and brings both up.
func (w *wiring) veth(a, b iface) {
	w.macs++
	macA, macB := w.mac(1), w.mac(2)
	w.do(a.ns, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = a.name, macA
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = b.name, macB,
			netlink.NsFd(b.ns.Fd())
		return addLink(h, veth)
	}, "add veth %s to %s of %s", a.name, b.name, b.ns.name)

	w.up(a, macA)
	w.up(b, macB)
	w.settling = append(w.settling, a, b)
}

// addLink adds a link, and retries while another process loads the module for its kind, because the
// kernel then answers that the kind is unknown. Otherwise the kernel loads the module itself.
func addLink(h *netlink.Handle, link netlink.Link) error {
	for tries := 0; ; tries++ {
		err := h.LinkAdd(link)
		if !errors.Is(err, unix.EOPNOTSUPP) || tries == 20 {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// bridge adds a bridge and brings it up.
func (w *wiring) bridge(br iface) {
	w.macs++
	mac := w.mac(3)
	w.do(br.ns, func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = br.name, mac
		return addLink(h, &netlink.Bridge{LinkAttrs: attrs})
	}, "add bridge %s", br.name)

	w.up(br, mac)
}

// enslave makes the interface a port of the bridge. Packets may leave by their input port (hairpin
// mode, which CNI plugins set, too). Without it, if bridged packets pass IP rules (br_netfilter),
// the bridge would drop a pod's packet to a service that selects the same pod.
func (w *wiring) enslave(port, br iface) {
	w.do(port.ns, func(h *netlink.Handle) error {
		link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: w.ends[port].index}}
		if err := h.LinkSetMasterByIndex(link, w.ends[br].index); err != nil {
			return err
		}
		return h.LinkSetHairpin(link, true)
	}, "make %s a port of bridge %s", port.name, br.name)

	w.settling = append(w.settling, br)
}

// up brings an interface up and remembers it.
func (w *wiring) up(i iface, mac net.HardwareAddr) {
	w.do(i.ns, func(h *netlink.Handle) error {
		link, err := h.LinkByName(i.name)
		if err != nil {
			return err
		}
		w.ends[i] = end{index: link.Attrs().Index, mac: mac}
		return h.LinkSetUp(link)
	}, "bring %s up", i.name)
}

// addr gives the interface an address that can be used at once.
func (w *wiring) addr(i iface, prefix netip.Prefix) {
	w.do(i.ns, func(h *netlink.Handle) error {
		addr := &netlink.Addr{IPNet: ipNet(prefix), LinkIndex: w.ends[i].index}
		if prefix.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		return h.AddrAdd(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: addr.LinkIndex}}, addr)
	}, "add address %s to %s", prefix, i.name)

	if prefix.Addr().Is6() {
		w.locals = append(w.locals, local{i.ns, prefix.Addr()})
	}
}

// route routes a prefix to the interface, through a gateway and with a preferred source address if
// those are valid. The gateway need not be on a connected network.
func (w *wiring) route(i iface, prefix netip.Prefix, via, src netip.Addr) {
	w.do(i.ns, func(h *netlink.Handle) error {
		route := &netlink.Route{LinkIndex: w.ends[i].index, Dst: ipNet(prefix),
			Scope: netlink.SCOPE_LINK}
		if via.IsValid() {
			route.Gw, route.Flags, route.Scope = via.AsSlice(), int(netlink.FLAG_ONLINK),
				netlink.SCOPE_UNIVERSE
		}

		if src.IsValid() {
			route.Src = src.AsSlice()
		}
		return h.RouteAdd(route)
	}, "add route to %s through %s", prefix, i.name)
}

// neigh makes addr a permanent neighbour behind the interface, with the hardware address of the
// interface at the other end.
func (w *wiring) neigh(i iface, addr netip.Addr, other iface) {
	w.do(i.ns, func(h *netlink.Handle) error {
		return h.NeighSet(&netlink.Neigh{
			LinkIndex: w.ends[i].index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(),
			HardwareAddr: w.ends[other].mac,
		})
	}, "add neighbour %s to %s", addr, i.name)
}

// settle waits until the network works. Before that, the kernel silently drops packets.
//
// The first interface of a pair gets its queue when a worker has seen that the second interface is
// up (linkwatch_event in net/core/link_watch.c). An IPv6 address is local when a worker has
// inserted its route, even without duplicate address detection (addrconf_dad_work in
// net/ipv6/addrconf.c).
func (w *wiring) settle(ctx context.Context) {
	for _, i := range w.settling {
		w.await(ctx, i.ns, func(h *netlink.Handle) (bool, error) {
			link, err := h.LinkByIndex(w.ends[i].index)
			return err == nil && link.Attrs().OperState == netlink.OperUp, err
		}, "wait for %s to be up", i.name)
	}

	for _, l := range w.locals {
		w.await(ctx, l.ns, func(h *netlink.Handle) (bool, error) {
			routes, err := h.RouteGet(l.addr.AsSlice())
			if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
				return false, nil
			}
			return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL, err
		}, "wait for %s to be local", l.addr)
	}
}

// await is do with a step that is repeated until done returns true.
func (w *wiring) await(ctx context.Context, ns *NS, done func(*netlink.Handle) (bool, error),
	format string, args ...any) {
	w.do(ns, func(h *netlink.Handle) error {
		for {
			if ok, err := done(h); ok || err != nil {
				return err
			}
			if err := wait.For(ctx, 200*time.Microsecond); err != nil {
				return err
			}
		}
	}, format, args...)
}

// ipNet converts a prefix and keeps its host bits.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
