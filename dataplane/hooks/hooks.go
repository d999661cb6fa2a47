package hooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// families are the families whose chains are read, by the numbers of the kernel (NFPROTO_INET,
// NFPROTO_IPV4 and NFPROTO_IPV6, include/uapi/linux/netfilter.h).
var families = map[uint8]string{1: "inet", 2: "ip", 10: "ip6"}

// place is a table or a chain.
type place struct {
	family       uint8
	table, chain string
}

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.family, o.family), cmp.Compare(p.table, o.table),
		cmp.Compare(p.chain, o.chain))
}

type reading struct {
	base  []Chain
	at    []place // of each base chain
	leads map[place][]string
	drops map[place][]Rule
	// accepts has the chains with a rule that may accept packets that start connections.
	accepts map[place]bool
}

// tries is the number of times that Read tries to list the chains without an interruption by
// another program's transaction.
const tries = 100

// Read returns the base chains of a network namespace, in the order of family, table and name. It
// does not read the rules of tables for which skip returns true, because kernlb's own tables may
// have many rules; a nil skip skips nothing. The result is not a snapshot: it may or may not
// contain changes made during the reading. Read needs CAP_NET_ADMIN, and CAP_SYS_ADMIN for another
// network namespace; without them it fails with kernelerr.ErrNoPermission.
func Read(ctx context.Context, cfg *Config, skip func(table string) bool) ([]Chain, error) {
	d, err := readAll(ctx, cmp.Or(cfg, &Config{}), skip)
	if err != nil {
		return nil, fmt.Errorf("read the chains of nf_tables: %w", nft.Explain(err, nil,
			nft.Running()))
	}

	for i := range d.base {
		d.base[i].Drops, d.base[i].Accepts = d.from(d.at[i])
	}
	slices.SortFunc(d.base, func(a, b Chain) int {
		return slices.Compare([]string{a.Family, a.Table, a.Name},
			[]string{b.Family, b.Table, b.Name})
	})

	return d.base, nil
}

func readAll(ctx context.Context, cfg *Config, skip func(string) bool) (d reading, err error) {
	conn, err := rawnl.Dial(&rawnl.Config{NetNS: cfg.NetNS})
	if err != nil {
		return d, err
	}
	defer conn.Close()
	err = rawnl.ErrDumpInterrupted
	for try := 0; try < tries && errors.Is(err, rawnl.ErrDumpInterrupted); try++ {
		d = reading{leads: map[place][]string{}, drops: map[place][]Rule{},
			accepts: map[place]bool{}}
		err = d.read(ctx, conn, skip)
	}

	return d, err
}

func (d *reading) read(ctx context.Context, conn *rawnl.Conn, skip func(string) bool) error {
	var b rawnl.Batch
	b.Message(rawnl.SubsysNFTables, nft.MsgGetChain, 0, 0, 0,
		rawnl.Object{Verb: "list", Kind: "chains"})
	tables := map[place]bool{}
	err := conn.Dump(ctx, &b, func(m rawnl.Message) error {
		c, err := nft.DecodeChain(m.Attrs)
		if err != nil || c.Type == "" || families[m.Family] == "" {
			return err
		}
		d.base = append(d.base, Chain{Family: families[m.Family], Table: c.Table,
			Name: c.Name, Type: c.Type, Hook: hookOf(uint32(c.Hook)), Priority: c.Prio,
			DropsByDefault: c.Drops})
		d.at = append(d.at, place{m.Family, c.Table, c.Name})
		tables[place{m.Family, c.Table, ""}] = true
		return nil
	})
	for _, t := range slices.SortedFunc(maps.Keys(tables), place.compare) {
		if err == nil && (skip == nil || !skip(t.table)) {
			err = d.readRules(ctx, conn, t)
		}
	}

	return err
}

// readRules reads the rules of a table. A table that no longer exists has no rules.
func (d *reading) readRules(ctx context.Context, conn *rawnl.Conn, t place) error {
	var b rawnl.Batch
	b.Message(rawnl.SubsysNFTables, nft.MsgGetRule, 0, t.family, 0,
		rawnl.Object{Verb: "list", Kind: "rules of table", Name: t.table})
	b.Text(nft.AttrRuleTable, t.table)
	return rawnl.Except(conn.DumpOwn(ctx, &b, func(m rawnl.Message) error {
		rule, err := nft.DecodeRule(m.Attrs)
		if err != nil || string(rule.Table) != t.table || m.Family != t.family {
			return err
		}
		at := place{t.family, t.table, string(rule.Chain)}
		does := rule.Effect()
		d.leads[at] = append(d.leads[at], does.Chains...)
		if !does.Drops && !does.Refuses && !does.Accepts {
			return nil
		}
		text := nft.ListRule(t.family, rule.Exprs)
		if does.Drops || does.Refuses {
			d.drops[at] = append(d.drops[at], Rule{Chain: at.chain, Handle: rule.Handle,
				Comment: nft.CommentOf(rule.UserData), Text: text})
		}

		if does.Accepts && !neverNew(text) {
			d.accepts[at] = true
		}
		return nil
	}), syscall.ENOENT)
}

// neverNew reports whether a rule matches only packets of established connections.
func neverNew(text string) bool {
	_, states, ok := strings.Cut(text, "ct state ")
	states, _, _ = strings.Cut(states, " ")
	return ok && !strings.HasPrefix(states, "!") && !slices.Contains(strings.Split(states, ","),
		"new") && !slices.Contains(strings.Split(states, ","), "untracked")
}

// from returns the rules that drop in a chain and in the chains that it jumps to. Each chain is
// visited once, before the chains that it jumps to. from also reports whether any of these chains
// accepts.
func (d *reading) from(at place) (drops []Rule, accepts bool) {
	seen, next := map[place]bool{}, []place{at}
	for len(next) > 0 {
		at, next = next[len(next)-1], next[:len(next)-1]
		if seen[at] {
			continue
		}
		seen[at] = true
		drops, accepts = append(drops, d.drops[at]...), accepts || d.accepts[at]
		for _, chain := range slices.Backward(d.leads[at]) {
			next = append(next, place{at.family, at.table, chain})
		}
	}

	return drops, accepts
}
