package livetrace

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	case off != "" && !local:
		w.Routing = "forwarding is off (sysctl " + off + ")"
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
	}

	return nil
}

// askConntrack asks whether the table of connections is full, if a packet was lost in a hook where
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
	}
	return errors.Join(err, table.Close())
}

// filtered reports whether rp_filter refuses a packet of IPv4: 1 demands that the route back uses
// the same interface, 2 that there is any. The larger of the values for all interfaces and for this
// one counts.
func (t *Tracer) filtered(conn *rtnetlink.Conn, w *walk) bool {
	mode := max(setting("ipv4", "all", "rp_filter"), setting("ipv4", w.In, "rp_filter"))
	if t.family != nft.IPv4 || mode <= "0" {
		return false
	}
	back, err := conn.RouteGet(w.Last.Src.Addr().AsSlice(), 0)
	return err != nil || len(back) == 0 || mode == "1" && back[0].LinkIndex != int(w.in)
}

// setting reads a sysctl of an interface, empty if it cannot be read.
func setting(family, of, name string) string {
	text, err := os.ReadFile("/proc/sys/net/" + family + "/conf/" + of + "/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// forwardingOff returns the sysctl that keeps the kernel from forwarding packets from an interface.
// It is empty if the kernel forwards, or if that is unknown.
func (t *Tracer) forwardingOff(in string) string {
	family, of := "ipv4", in
	if t.family == nft.IPv6 { // which has one switch for all interfaces
		family, of = "ipv6", "all"
	}
	if setting(family, of, "forwarding") != "0" {
		return ""
	}
	return "net/" + family + "/conf/" + of + "/forwarding"
}
