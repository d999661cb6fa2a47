package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// showOptions are the flags that select the output of show and graph show.
type showOptions struct {
	namespace, service string
	addr               netip.Addr
	port               int
	diff, spread       bool
}

// filterFlags defines the flags that select services.
func filterFlags(o *options, fs *flag.FlagSet) {
	s := &o.show
	serviceFlag(o, fs)
	fs.StringVar(&s.namespace, "namespace", "", "only services of the namespace `NAME`")
	parsed(fs, &s.addr, "address", "only what is reached at the address `IP`, or leads to it",
		parseIP)
	number(fs, &s.port, "port", 1, 65535, "only what is reached at the port `N`, or leads to it")
}

// all reports whether everything is selected.
func (o *showOptions) all() bool {
	return o.namespace == "" && o.service == "" && !o.addr.IsValid() && o.port == 0
}

// nothing says that nothing is to be shown.
func (o *showOptions) nothing() string {
	if o.all() {
		return "the kernel holds no service of this instance"
	}
	return "no service that the kernel holds matches -namespace, -service, -address and -port"
}

// filtered returns the selected part of a table.
func (o *showOptions) filtered(t *servicemodel.Table) (*servicemodel.Table, error) {
	if o.all() {
		return t, nil
	}
	return partOf(t, func(f *servicemodel.Frontend) bool { return o.shows(t, f) })
}

// shows reports whether a frontend of a table is selected.
func (o *showOptions) shows(t *servicemodel.Table, f *servicemodel.Frontend) bool {
	n := f.Service.Name
	return (o.namespace == "" || n.Namespace == o.namespace) &&
		(o.service == "" || n.String() == o.service) &&
		(!o.addr.IsValid() || f.Key.Addr == o.addr || leadsTo(t, f, func(e netip.AddrPort) bool {
			return e.Addr() == o.addr
		})) &&
		(o.port == 0 || f.Key.Port == uint16(o.port) || leadsTo(t, f,
			func(e netip.AddrPort) bool { return e.Port() == uint16(o.port) }))
}

// servicesOf returns the services of a table, each once, by name.
func servicesOf(t *servicemodel.Table) []servicemodel.Name {
	names := map[servicemodel.Name]bool{}
	for f := range t.Frontends() {
		names[f.Service.Name] = true
	}
	return slices.SortedFunc(maps.Keys(names), func(a, b servicemodel.Name) int {
		return strings.Compare(a.String(), b.String())
	})
}

// poolsOf returns the pools of a frontend.
func poolsOf(t *servicemodel.Table, f *servicemodel.Frontend) []*servicemodel.Pool {
	internal, external := t.PoolsOf(f)
	return slices.DeleteFunc([]*servicemodel.Pool{internal, external},
		func(p *servicemodel.Pool) bool { return p == nil })
}

// leadsTo reports whether a frontend has an endpoint for which is holds.
func leadsTo(t *servicemodel.Table, f *servicemodel.Frontend,
	is func(netip.AddrPort) bool) bool {
	return slices.ContainsFunc(poolsOf(t, f), func(p *servicemodel.Pool) bool {
		return slices.ContainsFunc(p.Slots,
			func(s servicemodel.Slot) bool { return is(s.Endpoint) })
	})
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
		for _, p := range poolsOf(t, f) {
			if pools[p.ID] {
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
		if pool == nil {
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
		was[s] = true
		if is[s] {
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
