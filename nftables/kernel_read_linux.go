package nftables

import (
	"context"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
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
		if err == nil && r.has(setSettings) {
			err = k.dumpSet(ctx, r, setSettings, func(e nft.Elem) { r.add(setSettings, e) })
		}
		if err != nil {
			return nil, err
		}
		if r.exists {
			r.recognize()
		}
		s.tables = append(s.tables, r)
	}
	s.compare(crowded)
	k.gen = gen.ID
	return s, nil
}

// readTable reads everything about a table except its elements. Commits to other tables do not
// disturb it: sets and rules are dumped by table, chains are asked for by name.
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
	// the node-wide rules are not known yet, so these are all chains that the table may have
	sh := shapeOf(r)
	var chains []string
	for _, c := range k.place.program(f, mostChains, &sh) {
		chains = append(chains, c.Name)
	}
	err = q.Chains(ctx, chains, func(c nft.ChainInfo) { r.chains[c.Name] = c.Chain })
	if err != nil {
		return nil, err
	}
	if len(r.chains)+r.namedSets() == info.Use {
		return r, nil
	}
	// There are chains that do not belong to the program. The kernel dumps the chains of all
	// tables, and may skip some while others commit. The next check finds the skipped ones.
	k.req.Reset()
	nft.AppendGetChains(&k.req, f)
	return r, k.conn.DumpOwn(ctx, &k.req, func(m rawnl.Message) error {
		c, err := nft.DecodeChain(m.Attrs)
		if err == nil && c.Table == table {
			r.chains[c.Name] = c.Chain
		}
		return err
	})
}

// requireOurs fails if a table exists that does not belong to the instance.
func (k *kernel) requireOurs(r *reading) error {
	if !r.exists || k.takeOver || !r.foreign() {
		return nil
	}
	return &dataplane.CollisionError{Backend: Name, Object: "table " + r.f.Name + " " + r.name}
}

// mostChains are the node-wide rules whose program has every chain that a table may have.
var mostChains = servicemodel.Rules{MasqueradeNeighbours: true, Forbidden: answerReset}

// namedSets counts the sets that do not belong to a rule. The kernel's number of sets in a table
// does not include sets of rules (for NFT_MSG_NEWSET, nf_tables_commit in
// net/netfilter/nf_tables_api.c).
func (r *reading) namedSets() (n int) {
	for name := range r.specs {
		if !isAnonymous(name) {
			n++
		}
	}
	return n
}

// readLearnt reads how often a client was remembered: only the rules that learn have counters. If
// another program changes the rules meanwhile, the number is different the next time, and the maps
// are read once more.
func (k *kernel) readLearnt(ctx context.Context, f *nft.Family, table string) (n uint64,
	err error) {
	err = k.query(f, table).Rules(ctx, "", func(rule nft.RuleInfo) error {
		packets, err := rule.Counted()
		n += packets
		return err
	})
	return n, err
}
