package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/examples/command/instance"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
)

// otherInstance is an instance in the kernel other than the one that the flags name.
type otherInstance struct {
	Instance  string `json:"instance"`
	Backend   string `json:"backend"`
	Frontends int    `json:"frontends"`
	// Program is the program that the instance belongs to, if its name tells.
	Program string `json:"program,omitempty"`
}

// otherInstances returns the other instances that hold frontends. It finds instances of nftables
// and ipvs by their tables, and instances of iptables only for known programs.
func (p *program) otherInstances(ctx context.Context) ([]otherInstance, error) {
	chains, err := hooks.Read(ctx, nil, func(string) bool { return true })
	if err != nil {
		return nil, err
	}
	is, tables := map[string]string{}, map[string]bool{}
	for _, c := range chains {
		tables[c.Table] = tables[c.Table] || c.Family == "ip" || c.Family == "ip6"
	}
	names := maps.Clone(tables)
	for table := range tables {
		names[strings.TrimSuffix(table, "-ipvs")] = true
	}
	for _, program := range instance.Programs() {
		is[program.Instance] = program.Is
		names[program.Instance] = true
	}

	var l []otherInstance
	for name := range names {
		may := map[string]bool{nftables.Name: tables[name], ipvs.Name: tables[instance.
			IPVSTable(name)], iptables.Name: tables["nat"] && is[name] != ""}
		for _, c := range instance.Candidates(name, p.opts.ipvs) {
			if name == p.opts.instance && c.Name == p.opts.backend || !may[c.Name] {
				continue
			}
			if n := holds(ctx, c); n > 0 {
				l = append(l, otherInstance{name, c.Name, n, is[name]})
			}
		}
	}

	slices.SortFunc(l, func(a, b otherInstance) int {
		return slices.Compare([]string{a.Instance, a.Backend}, []string{b.Instance, b.Backend})
	})
	return l, nil
}

// printInstances prints a line for each, with the command that shows it.
func (p *program) printInstances(l []otherInstance) error {
	if len(l) == 0 {
		return nil
	}
	fmt.Fprintln(p.stdout, "\nOther instances are in the kernel:")
	w := newColumns(p.stdout)
	fmt.Fprintln(w, "INSTANCE\tBACKEND\tFRONTENDS\tOF\tCOMMAND")
	for _, i := range l {
		command := "kernlb show -instance " + i.Instance
		if i.Backend != backendNames[0] {
			command += " -backend " + i.Backend
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", i.Instance, i.Backend, i.Frontends, i.Program,
			command)
	}

	return w.Flush()
}
