package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nfnl"
)

// probe asks the kernel for the revisions of matches and targets (NFNL_MSG_COMPAT_GET, include/uapi/linux/netfilter/nfnetlink_compat.h).
// Asking loads their modules.
func (k *kernel) probe(ctx context.Context) error {
	for _, f := range families {
		for _, x := range []struct {
			extension
			target bool
			lacks  *bool // nil: nothing works without
		}{
			{xtConntrack, false, nil}, {xtAddrtype, false, nil}, {xtStatistic, false, nil},
			{xtDNAT, true, nil}, {xtMasquerade, true, nil}, {xtMARK, true, nil}, {xtREJECT, true, nil},
			{xtRecent, false, &k.lacks.recent}, {xtSCTP, false, &k.lacks.sctp},
		} {
			err := k.probeExtension(ctx, f, x.extension, x.target)
			switch {
			case err == nil:
			case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EPROTONOSUPPORT):
				return fmt.Errorf("ask for %s revision %d: %w", x.name, x.revision, err)
			case x.lacks == nil:
				return fmt.Errorf("the kernel has no %s revision %d for %s: %w", x.name, x.revision, f.name, errors.ErrUnsupported)
			default:
				*x.lacks = true
			}
		}
	}
	return nil
}

func (k *kernel) probeExtension(ctx context.Context, f *family, x extension, target bool) error {
	k.req.Reset()
	k.req.Message(nfnl.SubsysNFTCompat, 0, nfnl.FlagAck, f.nfproto, 0, nfnl.Object{Verb: "find", Kind: "extension", Name: x.name})
	k.req.Text(1, x.name)    // NFTA_COMPAT_NAME
	k.req.U32(2, x.revision) // NFTA_COMPAT_REV
	typ := uint32(0)
	if target {
		typ = 1
	}
	k.req.U32(3, typ) // NFTA_COMPAT_TYPE
	_, err := k.conn.Query(ctx, &k.req)
	return err
}

// readAll reads all tables, at one generation of the ruleset, which it returns.
func (k *kernel) readAll(ctx context.Context) (*raw, uint32, error) {
	before, err := k.conn.GenID(ctx)
	if err != nil {
		return nil, 0, err
	}
	r := &raw{}
	for i := range families {
		if err := k.readFamily(ctx, i, r); err != nil {
			if errors.Is(err, nfnl.ErrDumpInterrupted) {
				err = fmt.Errorf("the ruleset keeps changing: %w", dataplane.ErrConflict)
			}
			return nil, 0, err
		}
	}
	after, err := k.conn.GenID(ctx)
	if err != nil {
		return nil, 0, err
	}
	if before.ID != after.ID {
		return nil, 0, fmt.Errorf("the ruleset keeps changing: %w", dataplane.ErrConflict)
	}
	r.routeLocalnet, err = k.sysctl.get()
	return r, after.ID, err
}

func (k *kernel) readFamily(ctx context.Context, i int, r *raw) error {
	f := families[i]
	k.request(f, msgGetTable, "list", "tables")
	err := k.conn.Dump(ctx, &k.req, func(m nfnl.Message) error {
		it := nfnl.Attrs(m.Attrs)
		for it.Next() {
			if t, ok := tableNamed(it.Text()); it.Type() == 1 && ok {
				r.tables[i][t] = rawTable{exists: true, chains: map[string]*rawChain{}}
			}
		}
		return it.Err()
	})
	if err != nil {
		return err
	}
	k.request(f, msgGetChain, "list", "chains")
	err = k.conn.Dump(ctx, &k.req, func(m nfnl.Message) error {
		c, err := decodeChain(m.Attrs)
		if t, ok := tableNamed(c.table); err == nil && ok && r.tables[i][t].exists {
			r.tables[i][t].chains[c.name] = &rawChain{foundChain: c}
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range tables {
		if err := k.readTable(ctx, f, t, &r.tables[i][t]); err != nil {
			return err
		}
	}
	return nil
}

func tableNamed(name string) (tableID, bool) {
	for _, t := range tables {
		if t.String() == name {
			return t, true
		}
	}
	return 0, false
}

// readTable reads the rules of a table, chain by chain: for each part of a dump the kernel walks the rules from the first
// (nf_tables_dump_rules in nf_tables_api.c), which takes longer than many requests do when there are thousands.
func (k *kernel) readTable(ctx context.Context, f *family, t tableID, r *rawTable) error {
	d := newDecoder(f)
	for _, name := range slices.Sorted(maps.Keys(r.chains)) {
		c := r.chains[name]
		err := k.dumpRules(ctx, d, t, name, func(found foundRule) { c.rules = append(c.rules, found.rule) })
		if err != nil {
			return err
		}
	}
	return nil
}

// dumpRules calls fn for each rule of a chain.
func (k *kernel) dumpRules(ctx context.Context, d *decoder, t tableID, chain string, fn func(foundRule)) error {
	k.request(d.f, msgGetRule, "list rules of", "chain")
	k.req.Text(attrRuleTable, t.String())
	k.req.Text(attrRuleChain, chain)
	return k.conn.Dump(ctx, &k.req, func(m nfnl.Message) error {
		found, err := d.decodeRuleMessage(m.Attrs)
		if err == nil {
			fn(found)
		}
		return err
	})
}

func (k *kernel) request(f *family, msg uint8, verb, kind string) {
	k.req.Reset()
	k.req.Message(nfnl.SubsysNFTables, msg, 0, f.nfproto, 0, nfnl.Object{Verb: verb, Kind: kind, Within: "family " + f.name})
}

// readRules reads the rules of one chain. A chain that is not there has none.
func (k *kernel) readRules(ctx context.Context, id chainID) ([]foundRule, error) {
	var l []foundRule
	err := k.dumpRules(ctx, newDecoder(families[id.family]), id.table, id.name, func(found foundRule) { l = append(l, found) })
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return l, err
}

// handles reads the handles of the rules that a plan changes, and makes sure that they are those it was made for.
func (b *Backend) handles(ctx context.Context, p *plan) (map[chainID]handles, error) {
	edited := p.edited()
	known := make(map[chainID]handles, len(edited))
	for _, x := range edited {
		found, err := b.kernel.readRules(ctx, x.id)
		if err != nil {
			return nil, err
		}
		h, ok := b.l.handlesOf(x, found)
		if !ok {
			return nil, fmt.Errorf("%s is not as it was read: %w", x.id, dataplane.ErrConflict)
		}
		known[x.id] = h
	}
	return known, nil
}
