package nftables

import (
	"bytes"
	"context"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// query asks about a table.
func (k *kernel) query(f *nft.Family, table string) nft.Query {
	return nft.Query{Conn: k.conn, Family: f, Table: table}
}

// readTables reads both tables without their elements, and finds out which tables must be made
// anew.
func (k *kernel) readTables(ctx context.Context, table string, crowded bool) (*snapshot, error) {
	gen, err := k.conn.GenID(ctx)
	if err != nil {
		return nil, err
	}
	s := &snapshot{}
	if s.version, err = k.readVersion(ctx, table); err != nil {
		return nil, err
	}
	for _, f := range nft.Families {
		r, err := k.readTable(ctx, f, table)
		if err == nil {
			err = k.requireOurs(r)
		}
		if err != nil {
			return nil, err
		}
		s.tables = append(s.tables, r)
	}
	s.compare(crowded)
	k.gen = gen.ID
	return s, nil
}

// readTable reads everything about a table except its elements, and its settings. Commits to other
// tables do not disturb it: sets and rules are dumped by table, chains are asked for by name.
func (k *kernel) readTable(ctx context.Context, f *nft.Family, table string) (*reading, error) {
	r := newReading(f, table)
	r.place = k.place
	q := k.query(f, table)
	info, exists, err := q.Info(ctx)
	if err != nil || !exists {
		return r, err
	}
	r.exists, r.dormant, r.uses = true, info.Dormant, info.Use
	err = q.Sets(ctx, func(s nft.SetInfo) {
		r.specs[s.Name] = s.Spec
		if s.Count >= 0 {
			r.told[s.Name] = s.Count
		}
		if s.Size > 0 {
			r.sizes[s.Name] = s.Size
		}
	})
	if err != nil {
		return nil, err
	}
	err = q.Rules(ctx, "", func(rule nft.RuleInfo) error {
		c := string(rule.Chain)
		r.hashes[c] = append(r.hashes[c], rule.Hash())
		return nil
	})
	if err != nil {
		return nil, err
	}
	if r.has(setSettings) {
		err = k.dumpSet(ctx, r, setSettings, func(e nft.Elem) { r.add(setSettings, e) })
		if err != nil {
			return nil, err
		}
	}

	program, fault := r.program()
	names := make([]string, len(program))
	for i, c := range program {
		names[i] = c.Name
	}
	err = q.Chains(ctx, names, func(c nft.ChainInfo) { r.chains[c.Name] = c.Chain })
	if err != nil {
		return nil, err
	}
	// The kernel's number of objects does not include the sets of rules (for NFT_MSG_NEWSET,
	// nf_tables_commit in net/netfilter/nf_tables_api.c).
	others := info.Use - len(r.chains)
	for name := range r.specs {
		if !isAnonymous(name) {
			others--
		}
	}
	if others != 0 {
		// There are chains that do not belong to the program. The kernel dumps the chains of all
		// tables, and may skip some while others commit. The next check finds the skipped ones.
		k.req.Reset()
		nft.AppendGetChains(&k.req, f)
		err = k.conn.DumpOwn(ctx, &k.req, func(m rawnl.Message) error {
			c, err := nft.DecodeChain(m.Attrs)
			if err == nil && c.Table == table && !isAnonymous(c.Name) {
				r.chains[c.Name] = c.Chain
			}
			return err
		})
	}
	r.recognize(program, fault)
	return r, err
}

// requireOurs fails if a table exists that belongs to an instance of package ipvs, or that is not
// empty and has none of the instance's marks.
func (k *kernel) requireOurs(r *reading) error {
	if !r.exists || k.takeOver || r.uses == 0 || r.marked() {
		return nil
	}
	return &dataplane.CollisionError{Backend: Name, Object: "table " + r.f.Name + " " + r.name}
}

// readLearnt reads how often a client was remembered, by the counters of the chains that learn. If
// another program changes the rules meanwhile, the number is different the next time, and the maps
// are read once more.
func (k *kernel) readLearnt(ctx context.Context, f *nft.Family, table string) (n uint64,
	err error) {
	err = k.query(f, table).Rules(ctx, "", func(rule nft.RuleInfo) error {
		if !bytes.HasPrefix(rule.Chain, []byte(chainLearn)) {
			return nil
		}
		packets, err := rule.Counted()
		n += packets
		return err
	})
	return n, err
}
