package nftables

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// get begins a request about the table.
func (k *kernel) get(f *nft.Family, msg uint8, kind, name string) *rawnl.Batch {
	k.req.Reset()
	k.req.Message(rawnl.SubsysNFTables, msg, 0, f.NFProto, 0, rawnl.Object{Verb: "read", Kind: kind,
		Name: name})
	return &k.req
}

// tableExists asks for a table.
func (k *kernel) tableExists(ctx context.Context, f *nft.Family, table string) (bool, error) {
	req := k.get(f, nft.MsgGetTable, "table", f.Name+" "+table)
	req.Text(1, table)
	_, err := k.conn.Query(ctx, req)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// readTable reads what a table is made of, apart from elements; nil if there is none. Nothing of
// that is disturbed by what others commit to other tables: sets and rules are dumped by table,
// chains are asked for by name.
func (k *kernel) readTable(ctx context.Context, f *nft.Family, table string) (*rawTable,
	error) {
	req := k.get(f, nft.MsgGetTable, "table", f.Name+" "+table)
	req.Text(nft.AttrTableName, table)
	replies, err := k.conn.Query(ctx, req)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil || len(replies) == 0 {
		return nil, err
	}
	info, err := nft.DecodeTable(replies[0].Attrs)
	if err != nil {
		return nil, err
	}
	raw := newRawTable(table)
	raw.dormant = info.Dormant
	if err := k.readSets(ctx, f, raw); err != nil {
		return nil, err
	}
	if err := k.readChains(ctx, f, raw); err != nil {
		return nil, err
	}
	if len(raw.chains)+raw.namedSets() != info.Use {
		if err := k.readAllChains(ctx, f, raw); err != nil {
			return nil, err
		}
	}
	return raw, k.readRules(ctx, f, raw)
}

func (k *kernel) readSets(ctx context.Context, f *nft.Family, raw *rawTable) error {
	return k.dumpSets(ctx, f, raw.name, func(s nft.SetInfo) {
		raw.sets[s.Name] = s.Spec
		if s.Count >= 0 {
			raw.counts[s.Name] = s.Count
		}
	})
}

// dumpSets calls fn with each set of a table.
func (k *kernel) dumpSets(ctx context.Context, f *nft.Family, table string,
	fn func(nft.SetInfo)) error {
	req := k.get(f, nft.MsgGetSet, "sets of table", f.Name+" "+table)
	req.Text(nft.AttrSetTable, table)
	return k.conn.DumpOwn(ctx, req, func(m rawnl.Message) error {
		s, err := nft.DecodeSet(m.Attrs)
		if err == nil {
			fn(s)
		}
		return err
	})
}

// mostChains are node-wide rules with which a table has each chain that it may have.
var mostChains = servicemodel.Rules{MasqueradeNeighbours: true}

// readChains asks for the chains that the table may have: the node-wide rules are not known yet.
func (k *kernel) readChains(ctx context.Context, f *nft.Family, raw *rawTable) error {
	sh := shapeOf(raw.sets)
	k.req.Reset()
	for _, c := range newProgram(f, mostChains, &sh) {
		k.req.Message(rawnl.SubsysNFTables, nft.MsgGetChain, 0, f.NFProto, 0,
			rawnl.Object{Verb: "read", Kind: "chain", Name: c.Name})
		k.req.Text(nft.AttrChainTable, raw.name)
		k.req.Text(nft.AttrChainName, c.Name)
	}
	var garbled error // it is no refusal, and must not be taken for one beside those
	err := k.conn.QueryAll(ctx, &k.req, func(_ int, m rawnl.Message) error {
		garbled = raw.addChain(m.Attrs)
		return garbled
	})
	if garbled != nil {
		return garbled
	}
	return rawnl.Except(err, unix.ENOENT)
}

// namedSets counts the sets that belong to no rule: a table does not count those that do (for
// NFT_MSG_NEWSET, nf_tables_commit in net/netfilter/nf_tables_api.c).
func (raw *rawTable) namedSets() (n int) {
	for name := range raw.sets {
		if !isAnonymous(name) {
			n++
		}
	}
	return n
}

// readAllChains looks for chains that do not belong. The kernel dumps those of all tables, and may
// skip some while others commit: those are found by the next look.
func (k *kernel) readAllChains(ctx context.Context, f *nft.Family, raw *rawTable) error {
	req := k.get(f, nft.MsgGetChain, "chains of table", f.Name+" "+raw.name)
	return k.conn.DumpOwn(ctx, req, func(m rawnl.Message) error { return raw.addChain(m.Attrs) })
}

func (k *kernel) readRules(ctx context.Context, f *nft.Family, raw *rawTable) error {
	req := k.get(f, nft.MsgGetRule, "rules of table", f.Name+" "+raw.name)
	req.Text(nft.AttrRuleTable, raw.name)
	return k.conn.DumpOwn(ctx, req, func(m rawnl.Message) error {
		r, err := nft.DecodeRule(m.Attrs)
		c := string(r.Chain)
		raw.hashes[c] = append(raw.hashes[c], r.Hash())
		return err
	})
}

// readLearnt reads how often a client was remembered: only rules that learn have counters.
// Where somebody changes the rules meanwhile, the number is another one the next time, so that the
// maps are read once more.
func (k *kernel) readLearnt(ctx context.Context, f *nft.Family, table string) (n uint64,
	err error) {
	req := k.get(f, nft.MsgGetRule, "counters of table", f.Name+" "+table)
	req.Text(nft.AttrRuleTable, table)
	err = k.conn.DumpOwn(ctx, req, func(m rawnl.Message) error {
		r, err := nft.DecodeRule(m.Attrs)
		if err != nil {
			return err
		}
		packets, err := r.Counted()
		n += packets
		return err
	})
	return n, err
}

// readCount asks how many elements a set has; -1 if the kernel does not say.
func (k *kernel) readCount(ctx context.Context, f *nft.Family, table, set string) (int, error) {
	req := k.get(f, nft.MsgGetSet, "set", set)
	req.Text(nft.AttrSetTable, table)
	req.Text(nft.AttrSetName, set)
	replies, err := k.conn.Query(ctx, req)
	if err != nil || len(replies) == 0 {
		return -1, err
	}
	s, err := nft.DecodeSet(replies[0].Attrs)
	return s.Count, err
}

// dumpElements calls fn with each element of a set. Its bytes are valid until fn returns.
func (k *kernel) dumpElements(ctx context.Context, f *nft.Family, table, set string,
	fn func(nft.Elem) error) error {
	req := k.get(f, nft.MsgGetSetElem, "elements of set", set)
	req.Text(nft.AttrElemsTable, table)
	req.Text(nft.AttrElemsSet, set)
	return k.conn.DumpOwn(ctx, req, func(m rawnl.Message) error {
		return nft.DecodeElements(m.Attrs, fn)
	})
}
