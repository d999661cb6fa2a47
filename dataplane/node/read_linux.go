package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rtnetlink"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/servicemodel"
)

// reader reads the facts of one namespace. A fact that cannot be read is unknown; the reader still
// reads the other facts.
type reader struct {
	facts
	cfg *Config
	ns  *threadns.NS
}

// read reads all facts. Counters are totals since the creation of the namespace.
func (c *Config) read(ctx context.Context) *facts {
	r := reader{cfg: c}
	r.facts.sysctls = map[string]string{}
	ns, err := threadns.Open(c.NetNS)
	if err != nil {
		r.try("the network namespace", err)
		return &r.facts
	}

	defer ns.Close()
	r.ns = ns
	r.try("links, addresses and neighbours", r.network())
	r.try("sysctls", ns.Do(r.readSysctls))
	r.try("conntrack", r.conntrack(ctx))
	r.try("the chains of nf_tables", r.nftables(ctx))
	r.proxy, err = kubeproxy.Running(ctx, &kubeproxy.Config{NetNS: ns.NetNS()})
	r.try("kube-proxy", err)
	return &r.facts
}

// try records why a fact is unknown.
func (r *reader) try(what string, err error) {
	if err != nil {
		r.unknown = append(r.unknown, fmt.Sprintf("%s: %v", what, err))
	}
}

func (r *reader) conntrack(ctx context.Context) error {
	table, err := conntrack.Open(&conntrack.Config{NetNS: r.ns.NetNS()})
	if err != nil {
		return err
	}
	defer table.Close()
	r.usage, err = table.Usage(ctx)
	s := &r.usage.Stats
	copy(r.grown[:], []uint64{s.Dropped, s.EarlyDropped, s.InsertFailed, s.ChainsTooLong})
	return err
}

// readSysctls runs on a thread in the namespace.
func (r *reader) readSysctls() error {
	for _, name := range []string{sysctls.RouteLocalnet, "net/bridge/bridge-nf-call-iptables",
		"net/bridge/bridge-nf-call-ip6tables"} {
		text, err := os.ReadFile("/proc/sys/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // without br_netfilter
		}
		if err != nil {
			return err
		}
		r.facts.sysctls[name] = strings.TrimSpace(string(text))
	}

	for i, name := range []string{"iptables", "ip6tables"} {
		if r.facts.sysctls["net/bridge/bridge-nf-call-"+name] == "1" {
			for _, b := range r.bridges {
				b.calls[families[i]] = true
			}
		}
	}

	return r.readNetstat()
}

// readNetstat reads the counters of dropped packets that the kernel keeps as text.
func (r *reader) readNetstat() (err error) {
	for _, c := range []struct {
		file, name string
		counter    int
	}{{"netstat", "IPReversePathFilter", reversePath}, {"snmp", "InAddrErrors", unforwarded}} {
		if r.grown[c.counter], err = readCounter(c.file, c.name); err != nil {
			return err
		}
	}

	return nil
}

// readCounter reads a counter from a file that has names and values in alternating lines.
func readCounter(file, name string) (n uint64, err error) {
	text, err := os.ReadFile("/proc/thread-self/net/" + file)
	if err != nil {
		return 0, err
	}
	lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if at := slices.Index(names, name); at >= 0 && at < len(values) {
			return strconv.ParseUint(values[at], 10, 64)
		}
	}

	return 0, nil
}

// network reads links, addresses, neighbours, routes, and settings of links.
func (r *reader) network() error {
	conn, err := rtnetlink.Open(r.ns)
	if err != nil {
		return err
	}
	defer conn.Close()
	links, err := conn.LinkList()
	if err != nil {
		return err
	}
	addrs, err := conn.AddrList()
	if err != nil {
		return err
	}
	names, addressed := map[int]string{}, map[int]bool{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		if slices.Contains(rtnetlink.ServiceDevices[:1], l.Attrs().Name) {
			r.leftover = append(r.leftover, "the device "+l.Attrs().Name)
		}
	}

	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			r.addrs = append(r.addrs, addr.Unmap())
			addressed[a.LinkIndex] = addressed[a.LinkIndex] || addr.Unmap().Is4()
		}
	}

	r.findBridges(links, addrs)
	if err := r.settings(conn, names, addressed); err != nil {
		return err
	}
	return r.findFailed(conn, names)
}

func (r *reader) findBridges(links []netlink.Link, addrs []netlink.Addr) {
	ports := map[int]int{}
	for _, l := range links {
		ports[l.Attrs().MasterIndex]++
	}
	for _, l := range links {
		if l.Type() != "bridge" || ports[l.Attrs().Index] < 2 {
			continue
		}
		b := bridge{name: l.Attrs().Name, calls: map[servicemodel.Family]bool{}}
		for _, a := range addrs {
			addr, ok := netip.AddrFromSlice(a.IP)
			bits, _ := a.Mask.Size()
			if ok && a.LinkIndex == l.Attrs().Index && !addr.IsLinkLocalUnicast() {
				b.nets = append(b.nets, netip.PrefixFrom(addr.Unmap(), bits).Masked())
			}
		}

		r.bridges = append(r.bridges, b)
	}
}

// settings reads the settings of links. IPv4 forwarding is a setting of each link, IPv6 forwarding
// a setting for all links. addressed says which links have an IPv4 address.
func (r *reader) settings(conn *rtnetlink.Conn, names map[int]string,
	addressed map[int]bool) error {
	forwards := map[servicemodel.Family]bool{}
	all, err := conn.Settings(unix.AF_INET)
	if err != nil {
		return err
	}
	everywhere := 0 // the larger value of rp_filter counts
	for _, s := range all {
		if s.Link == rtnetlink.AllLinks {
			everywhere = s.ReversePath
		}
	}

	for _, s := range all {
		name := names[s.Link]
		if name == "" || name == "lo" {
			continue
		}
		if s.Forwarding {
			forwards[servicemodel.IPv4] = true
		} else {
			r.still = append(r.still, name)
		}

		on, addressed := max(s.ReversePath, everywhere), addressed[s.Link]
		r.loose = r.loose || on > 1
		if on == 1 || on > 1 && !addressed {
			r.strict = append(r.strict, name)
			r.lenient = cmp.Or(r.lenient, rtnetlink.AllowSources(name, everywhere, addressed))
		}
	}

	all, err = conn.Settings(unix.AF_INET6)
	if err != nil {
		return err
	}
	for _, s := range all {
		if s.Link == rtnetlink.AllLinks {
			forwards[servicemodel.IPv6] = s.Forwarding
		}
	}

	r.forwards = forwards
	return nil
}

// findFailed reads the neighbours that do not answer and, if there are any, the gateways.
func (r *reader) findFailed(conn *rtnetlink.Conn, names map[int]string) error {
	all, err := conn.NeighList()
	if err != nil {
		return err
	}
	for _, n := range all {
		if addr, ok := netip.AddrFromSlice(n.IP); ok && n.State&netlink.NUD_FAILED != 0 {
			r.failed = append(r.failed, neighbour{addr.Unmap(), names[n.LinkIndex]})
		}
	}

	if len(r.failed) == 0 {
		return nil
	}
	r.gateways = map[netip.Addr]bool{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := conn.RouteList(family, unix.RT_TABLE_MAIN)
		if err != nil {
			return err
		}
		for _, route := range routes {
			if via, ok := netip.AddrFromSlice(route.Gw); ok {
				r.gateways[via.Unmap()] = true
			}
		}
	}

	return nil
}

// nftables reads the chains of other programs, and the objects that kube-proxy left.
func (r *reader) nftables(ctx context.Context) error {
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: r.ns.NetNS()})
	if err != nil {
		return err
	}
	defer conn.Close()
	ours := r.owner(ctx, conn)
	chains, err := hooks.Read(ctx, &hooks.Config{NetNS: r.ns.NetNS()}, func(table string) bool {
		return table == "nat" || ours(table) // nat drops nothing, and may be large
	})
	if err != nil {
		return err
	}
	for _, c := range chains {
		if c.Table == kubeProxyTable && !slices.Contains(r.leftover, "the table "+c.Table) {
			r.leftover = append(r.leftover, "the table "+c.Table)
		}
		if c.Type != "filter" || ours(c.Table) {
			continue
		}
		c.Drops = slices.DeleteFunc(c.Drops, func(d hooks.Rule) bool {
			return r.cfg.Ours(c.Table, d.Chain)
		})
		r.chains = append(r.chains, c)
	}

	return r.ask(ctx, conn)
}

// owner returns a function that reports whether a table belongs to an instance of kernlb. Tables of
// the nftables and ipvs backends have settings, whatever their names.
func (r *reader) owner(ctx context.Context, conn *rawnl.Conn) func(table string) bool {
	known := map[string]bool{}
	return func(table string) bool {
		is, asked := known[table]
		if asked {
			return is
		}
		is = r.cfg.Ours(table, "")
		for _, f := range nft.Families {
			lines, err := nft.Query{Conn: conn, Family: f, Table: table}.Comments(ctx, "settings")
			is = is || err == nil && slices.ContainsFunc(lines, func(line string) bool {
				return strings.HasPrefix(line, "layout ")
			})
		}
		known[table] = is
		return is
	}
}

// Objects that only kube-proxy creates: the table of its nftables mode, and the chain by which the
// other modes notice that their rules were flushed.
const (
	kubeProxyTable = "kube-proxy"
	kubeProxyChain = "KUBE-PROXY-CANARY"
)

// ask checks whether single objects exist.
func (r *reader) ask(ctx context.Context, conn *rawnl.Conn) error {
	for _, f := range nft.Families {
		q := nft.Query{Conn: conn, Family: f, Table: "mangle"}
		err := q.Chains(ctx, []string{kubeProxyChain}, func(nft.ChainInfo) {
			r.leftover = append(r.leftover, "chains of iptables in the family "+f.Name)
		})
		if err != nil {
			return err
		}
	}

	if r.facts.sysctls[sysctls.RouteLocalnet] == "1" {
		guards := &sysctls.Guards{NetNS: r.ns.NetNS()}
		relied, err := guards.Relied(ctx, []string{sysctls.RouteLocalnet})
		r.guarded = len(relied) > 0
		return err
	}

	return nil
}
