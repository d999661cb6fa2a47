package livetrace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rtnetlink"
)

// askRouting asks the kernel what it would do with a packet that was lost between prerouting and
// the next hook. The calling thread is in the tracer's network namespace.
func (t *Tracer) askRouting(w *walk) error {
	if w.Fate != Lost || w.Within || w.Hook != "prerouting" || w.in == 0 {
		return nil
	}
	conn, err := rtnetlink.Open(t.ns)
	if err != nil {
		return err
	}
	defer conn.Close()
	src, dst := w.Last.Src.Addr(), w.Last.Dst.Addr()
	routes, err := conn.RouteIn(int(w.in), src.AsSlice(), dst.AsSlice())
	local := len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
	off := t.forwardingOff(w.In)
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL) && t.filtered(conn, w):
		w.Routing = fmt.Sprintf("rp_filter refuses %v by %s: its route back is another one", src,
			w.In)
		w.Do = allowSource(w.In, src)
	case off != "" && !local:
		w.Routing, w.Do = "forwarding is off (sysctl "+off+")", "sysctl -w "+off+"=1"
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		w.Routing = fmt.Sprintf("there is no route to %v", dst)
	case errors.Is(err, unix.EACCES):
		w.Routing = fmt.Sprintf("a route or rule prohibits the way to %v", dst)
	case errors.Is(err, unix.EINVAL):
		w.Routing = fmt.Sprintf("%v to %v cannot come in by %s (a martian packet), or a route "+
			"drops it (blackhole)", src, dst, w.In)
	case err == nil && src == dst && len(routes) > 0 && routes[0].LinkIndex == int(w.in):
		w.Routing = fmt.Sprintf("the bridge %s sends no packet back by the port that it came "+
			"from, unless that has hairpin on", w.In)
		w.Do = "ip link set PORT type bridge_slave hairpin on, for the client's port of " + w.In
	}

	return nil
}

// askConntrack checks whether the conntrack table is full, if a packet was lost in a hook where
// conntrack adds connections.
func (t *Tracer) askConntrack(ctx context.Context, w *walk) error {
	if w.Fate != Lost || !w.Within || w.Hook != "prerouting" && w.Hook != "output" {
		return nil
	}
	table, err := conntrack.Open(&conntrack.Config{NetNS: t.ns.NetNS()})
	if err != nil {
		return err
	}
	u, err := table.Usage(ctx)
	if u.Fraction() > 0.95 { // it may have shrunk since
		w.Full = fmt.Sprintf("%d of %d", u.Count, u.Max)
		w.Do = u.Advice()
	}
	return errors.Join(err, table.Close())
}

// filtered reports whether rp_filter drops an IPv4 packet.
func (t *Tracer) filtered(conn *rtnetlink.Conn, w *walk) bool {
	mode := reversePath("all", w.In)
	if t.family != nft.IPv4 || mode == 0 {
		return false
	}
	back, err := conn.RouteGet(w.Last.Src.Addr().AsSlice(), 0)
	return err != nil || len(back) == 0 ||
		(mode == 1 || !addressed(w.In)) && back[0].LinkIndex != int(w.in)
}

// setting reads a sysctl of an interface, empty if it cannot be read.
func setting(family, of, name string) string {
	text, err := os.ReadFile("/proc/sys/net/" + family + "/conf/" + of + "/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// allowSource says how to make rp_filter accept packets from a source on an interface. If rp_filter
// is loose, a route back through any other interface is enough.
func allowSource(in string, src netip.Addr) string {
	addressed := addressed(in)
	if addressed && reversePath("all", in) == 2 {
		return fmt.Sprintf("add a route to %v: rp_filter is 2, so any link will do", src)
	}
	return fmt.Sprintf("%s, or correct the route back to %v",
		rtnetlink.AllowSources(in, reversePath("all"), addressed), src)
}

// addressed reports whether an interface has an address of IPv4.
func addressed(name string) bool {
	in, err := net.InterfaceByName(name)
	if err != nil {
		return false
	}
	addrs, err := in.Addrs()
	return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Is4()
	})
}

// reversePath returns the largest rp_filter of interfaces.
func reversePath(of ...string) (most int) {
	for _, name := range of {
		n, _ := strconv.Atoi(setting("ipv4", name, "rp_filter")) // 0 if it cannot be read
		most = max(most, n)
	}

	return most
}

// forwardingOff returns the sysctl that keeps the kernel from forwarding packets from an interface.
// It is empty if the kernel forwards, or if that is unknown. A switch for all interfaces comes
// first, because it also sets the switch of each interface.
func (t *Tracer) forwardingOff(in string) string {
	switch {
	case t.family == nft.IPv6 && setting("ipv6", "all", "forwarding") == "0":
		return rtnetlink.Sysctl("ipv6", "all", "forwarding")
	case t.family == nft.IPv6 || setting("ipv4", in, "forwarding") != "0":
		return ""
	case setting("ipv4", "all", "forwarding") == "0":
		return "net.ipv4.ip_forward"
	}

	return rtnetlink.Sysctl("ipv4", in, "forwarding")
}
