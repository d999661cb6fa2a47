package read

import (
	"context"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// Tables reads both tables without their elements, and finds out which tables must be replaced.
func (k *Reader) Tables(ctx context.Context, table string, crowded bool) (*Snapshot, error) {
	gen, err := k.Conn.GenID(ctx)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Gen: gen.ID}
	if s.Version, err = k.Version(ctx, table); err != nil {
		return nil, err
	}
	for _, f := range nft.Families {
		r, err := k.Table(ctx, f, table)
		if err == nil {
			err = k.RequireOurs(r)
		}
		if err != nil {
			return nil, err
		}
		s.Tables = append(s.Tables, r)
	}

	s.Compare(crowded)
	return s, nil
}

// Table reads everything about a table except its elements; it includes the settings. Commits to
// other tables do not disturb the reading: sets and rules are dumped by table, chains are requested
// by name.
func (k *Reader) Table(ctx context.Context, f *nft.Family, table string) (*Reading, error) {
	r := NewReading(f, table)
	r.hooks = k.hooks
	q := k.About(f, table)
	info, exists, err := q.Info(ctx)
	if err != nil || !exists {
		return r, err
	}
	r.Exists, r.Dormant, r.uses = true, info.Dormant, info.Use
	err = q.Sets(ctx, func(s nft.SetInfo) {
		r.Specs[s.Name] = s.Spec
		if s.Count >= 0 {
			r.Lengths[s.Name] = s.Count
		}
		if s.Size > 0 {
			r.Sizes[s.Name] = s.Size
		}
	})
	if err != nil {
		return nil, err
	}
	err = q.Rules(ctx, "", func(rule nft.RuleInfo) error {
		c := string(rule.Chain)
		r.Hashes[c] = append(r.Hashes[c], rule.Hash())
		return nil
	})
	if err != nil {
		return nil, err
	}
	if r.Has(form.SetSettings) {
		err = k.DumpSet(ctx, r, form.SetSettings, func(e nft.Elem) { r.Add(form.SetSettings, e) })
		if err != nil {
			return nil, err
		}
	}

	program, fault := r.Program()
	names := make([]string, len(program))
	for i, c := range program {
		names[i] = c.Name
	}
	err = q.Chains(ctx, names, func(c nft.ChainInfo) { r.Chains[c.Name] = c.Chain })
	if err != nil {
		return nil, err
	}

	// The kernel's number of objects does not include the sets of rules (for NFT_MSG_NEWSET,
	// nf_tables_commit in net/netfilter/nf_tables_api.c).
	others := info.Use - len(r.Chains)
	for name := range r.Specs {
		if !form.IsAnonymous(name) {
			others--
		}
	}

	if others != 0 {
		// There are chains that do not belong to the program. The kernel dumps the chains of all
		// tables, and may skip chains while other programs commit. The next check finds the skipped
		// chains.
		k.Req.Reset()
		nft.AppendGetChains(&k.Req, f)
		err = k.Conn.DumpOwn(ctx, &k.Req, func(m rawnl.Message) error {
			c, err := nft.DecodeChain(m.Attrs)
			if err == nil && c.Table == table && !form.IsAnonymous(c.Name) {
				r.Chains[c.Name] = c.Chain
			}
			return err
		})
	}

	r.Recognize(program, fault)
	return r, err
}

// RequireOurs fails if the table belongs to an instance of package ipvs, or if it is not empty and
// has none of the instance's marks.
func (k *Reader) RequireOurs(r *Reading) error {
	if !r.Exists || k.takeOver || r.uses == 0 || r.marked() {
		return nil
	}
	return &backends.CollisionError{Backend: "nftables",
		Object: "table " + r.Family.Name + " " + r.Name}
}
