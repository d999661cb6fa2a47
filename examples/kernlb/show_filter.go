package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// showOptions are the flags that select the output of show and graph show.
type showOptions struct {
	namespace, service, address string
	port                        uint
	diff, spread                bool
	addr                        netip.Addr // of address
}

// filterFlags defines the flags that select services.
func (o *options) filterFlags(fs *flag.FlagSet) func() error {
	s, check := &o.show, o.serviceFlag(fs)
	fs.StringVar(&s.namespace, "namespace", "", "only services of the namespace `NAME`")
	fs.StringVar(&s.address, "address", "",
		"only what is reached at the address `IP`, or leads to it")
	fs.UintVar(&s.port, "port", 0, "only what is reached at the port `N`, or leads to it")
	return func() (err error) {
		if s.address != "" {
			if s.addr, err = netip.ParseAddr(s.address); err != nil {
				return fmt.Errorf("-address: %q is not an IP address", s.address)
			}
			s.addr = s.addr.Unmap()
		}
		if s.port > 65535 {
			return fmt.Errorf("-port: %d: want 1 to 65535", s.port)
		}
		return check()
	}
}

func (o *options) showFlags(fs *flag.FlagSet) func() error {
	fs.BoolVar(&o.show.diff, "diff", false, "what the kernel holds and the manifests (-f) do not "+
		"say, and the reverse; the exit code is 1 if there is anything")
	fs.BoolVar(&o.show.spread, "spread", false, "how each pool chooses among its endpoints: their "+
		"weights, the shares of new connections that they are to have, and those that they have")
	fs.BoolVar(&o.count.show, "counters", false, "what each frontend and endpoint has had, since "+
		"kernlb count; on ipvs since it is there")
	fs.BoolVar(&o.count.conntrack, "conntrack", false, "how many flows conntrack has of each "+
		"frontend and endpoint now, and their packets and bytes if the sysctl "+
		"net.netfilter.nf_conntrack_acct is on")
	return nil
}

// checkShow checks the flags of show.
func (o *options) checkShow() error {
	switch {
	case o.count.show && o.count.conntrack:
		return errors.New("-counters or -conntrack: show prints one of them")
	case o.show.spread && (o.show.diff || o.count.show || o.count.conntrack):
		return errors.New("-spread goes with none of -diff, -counters and -conntrack")
	case o.show.diff && len(o.files) == 0:
		return errors.New("-diff compares with manifests: it needs -f")
	}
	return nil
}

// filtered returns the selected part of a table.
func (o *showOptions) filtered(t *servicemodel.Table) (*servicemodel.Table, error) {
	if o.namespace == "" && o.service == "" && o.address == "" && o.port == 0 {
		return t, nil
	}
	return partOf(t, func(f *servicemodel.Frontend) bool { return o.shows(t, f) })
}

// shows reports whether a frontend of a table is selected.
func (o *showOptions) shows(t *servicemodel.Table, f *servicemodel.Frontend) bool {
	n := f.Service.Name
	return (o.namespace == "" || n.Namespace == o.namespace) &&
		(o.service == "" || n.String() == o.service) &&
		(o.address == "" || f.Key.Addr == o.addr || leadsTo(t, f, func(e netip.AddrPort) bool {
			return e.Addr() == o.addr
		})) &&
		(o.port == 0 || f.Key.Port == uint16(o.port) || leadsTo(t, f,
			func(e netip.AddrPort) bool { return e.Port() == uint16(o.port) }))
}

// leadsTo reports whether a frontend has an endpoint for which is holds.
func leadsTo(t *servicemodel.Table, f *servicemodel.Frontend,
	is func(netip.AddrPort) bool) bool {
	internal, external := t.PoolsOf(f)
	for _, p := range []*servicemodel.Pool{internal, external} {
		if p != nil && slices.ContainsFunc(p.Slots,
			func(s servicemodel.Slot) bool { return is(s.Endpoint) }) {
			return true
		}
	}
	return false
}

// partOf returns the part of a table that the kept frontends need.
func partOf(t *servicemodel.Table, keep func(*servicemodel.Frontend) bool) (*servicemodel.Table,
	error) {
	c := servicemodel.Contents{Rules: t.Rules()}
	addrs, pools := map[netip.Addr]bool{}, map[servicemodel.PoolID]bool{}
	for f := range t.Frontends() {
		if !keep(f) {
			continue
		}
		c.Frontends = append(c.Frontends, f)
		addrs[f.Key.Addr] = true
		internal, external := t.PoolsOf(f)
		for _, p := range []*servicemodel.Pool{internal, external} {
			if p == nil || pools[p.ID] {
				continue
			}
			pools[p.ID] = true
			c.Pools = append(c.Pools, p)
			for _, s := range p.Slots {
				addrs[s.Endpoint.Addr()] = true
			}
		}
	}
	others := func(a netip.Addr) bool { return !addrs[a] }
	c.ClusterIPs = slices.DeleteFunc(slices.Collect(t.ClusterIPs()), others)
	c.Hairpins = slices.DeleteFunc(slices.Collect(t.Hairpins()), others)
	return servicemodel.NewTable(c)
}

// errDiffers says that show -diff found a difference.
var errDiffers = errors.New("the kernel does not hold what the manifests say: see above")

// printDiff prints the difference between kernel and manifests as a unified diff, with a hunk for
// each frontend that differs.
func (p *program) printDiff(held, wanted *servicemodel.Table, drift []string) error {
	fmt.Fprintf(p.stdout, "--- kernel (%s)\n+++ manifests (%s)\n", p.opts.backend,
		strings.Join(p.opts.files, ", "))
	differs := len(drift) > 0
	hunk := func(title string, old, new []string) {
		if slices.Equal(old, new) {
			return
		}
		differs = true
		fmt.Fprintf(p.stdout, "@@ %s @@\n", title)
		for _, l := range unified(old, new) {
			fmt.Fprintln(p.stdout, l)
		}
	}
	if c := servicemodel.Diff(held, wanted); c.Rules != nil && held.Len() > 0 {
		differs = true
		fmt.Fprintf(p.stdout, "@@ settings of the node @@\n%v",
			&servicemodel.ChangeSet{Rules: c.Rules})
	}
	keys := map[servicemodel.FrontendKey]*servicemodel.Frontend{}
	for _, t := range []*servicemodel.Table{held, wanted} {
		for f := range t.Frontends() {
			keys[f.Key] = f
		}
	}
	for _, k := range sortedKeys(keys) {
		hunk(keyText(k)+" "+keys[k].Service.String(), linesOf(held, k),
			linesOf(wanted, k))
	}
	for _, d := range drift {
		fmt.Fprintf(p.stdout, "! %s\n", d)
	}
	if differs {
		return errDiffers
	}
	return nil
}

// linesOf returns what a table says about a frontend, one line for each endpoint.
func linesOf(t *servicemodel.Table, k servicemodel.FrontendKey) []string {
	f := t.Frontend(k)
	if f == nil {
		return nil
	}
	lines := []string{f.String()}
	internal, external := t.PoolsOf(f)
	for i, pool := range []*servicemodel.Pool{internal, external} {
		if pool == nil || i == 1 && external == internal {
			continue
		}
		to := "  -> "
		if i == 1 {
			to = "  outside -> "
		}
		var l []string
		for _, s := range pool.Slots {
			l = append(l, to+s.String())
		}
		slices.Sort(l)
		lines = append(lines, l...)
	}
	return slices.Compact(lines)
}

// unified returns the difference of two lists of lines: lines only in old are removed, followed by
// lines only in new, which are added.
func unified(old, new []string) []string {
	was, is := make(map[string]bool, len(old)), make(map[string]bool, len(new))
	for _, s := range new {
		is[s] = true
	}
	var l []string
	for _, s := range old {
		sign := "-"
		if was[s] = true; is[s] {
			sign = " "
		}
		l = append(l, sign+s)
	}
	for _, s := range new {
		if !was[s] {
			l = append(l, "+"+s)
		}
	}
	return l
}
