package ipvs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nft"
)

// rawTable is what was read of a companion table.
type rawTable struct {
	flags  uint32
	uses   int // how many chains and sets it has
	sets   map[string]nft.SetInfo
	chains map[string]rawChain
	rules  map[string][]uint64 // hashes by chain
	elems  map[string]map[string]nft.Elem
}

type rawChain struct {
	nft.Chain
	policy uint32
}

// Attributes of tables and chains (include/uapi/linux/netfilter/nf_tables.h).
const (
	attrTableFlags  = 2 // NFTA_TABLE_FLAGS
	attrTableUse    = 3 // NFTA_TABLE_USE
	attrChainPolicy = 5 // NFTA_CHAIN_POLICY

	tableDormant = 0x1 // NFT_TABLE_F_DORMANT
	policyAccept = 1   // NF_ACCEPT
)

// errMisread says that a dump showed an element twice: the kernel was making the set's hash table
// anew, and may have left out others.
var errMisread = errors.New("the dump showed an element twice")

// ask appends a request about a table of a family to a batch.
func ask(req *nfnl.Batch, f *nft.Family, msg uint8, table, kind, name string) {
	object := nfnl.Object{Verb: "read", Kind: kind, Name: name,
		Within: "table " + f.Name + " " + table}
	req.Message(nfnl.SubsysNFTables, msg, 0, f.NFProto, 0, object)
	req.Text(1, table)
}

// readTable reads a companion table, object by object, so that those of others neither cost time
// nor stand in the way; nil if there is none. What it reads is right if nobody has changed the
// table meanwhile.
func (b *Backend) readTable(ctx context.Context, f *nft.Family) (*rawTable, error) {
	raw := &rawTable{sets: map[string]nft.SetInfo{}, chains: map[string]rawChain{},
		rules: map[string][]uint64{}, elems: map[string]map[string]nft.Elem{}}
	if there, err := b.readHead(ctx, f, raw); err != nil || !there {
		return nil, err
	}
	if err := b.readChains(ctx, f, raw); err != nil {
		return nil, err
	}
	if err := b.readRules(ctx, f, raw); err != nil {
		return nil, err
	}
	if err := b.readSets(ctx, f, raw); err != nil {
		return nil, err
	}
	for name, s := range raw.sets {
		raw.elems[name] = map[string]nft.Elem{}
		if s.Count == 0 {
			continue
		}
		elems, err := b.readElements(ctx, f, b.cfg.Table, name)
		if err != nil {
			return nil, err
		}
		raw.elems[name] = elems
	}
	return raw, nil
}

// readHead reads what the table is, and reports whether it is there.
func (b *Backend) readHead(ctx context.Context, f *nft.Family, raw *rawTable) (bool, error) {
	var req nfnl.Batch
	ask(&req, f, nft.MsgGetTable, b.cfg.Table, "table", b.cfg.Table)
	replies, err := b.nf.Query(ctx, &req)
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, m := range replies {
		it := nfnl.Attrs(m.Attrs)
		for it.Next() {
			switch it.Type() {
			case attrTableFlags:
				raw.flags = it.U32()
			case attrTableUse:
				raw.uses = int(it.U32())
			}
		}
		if err := it.Err(); err != nil {
			return false, err
		}
	}
	return true, nil
}

// readChains asks for our chains, each by its name: the kernel can list only those of all tables.
func (b *Backend) readChains(ctx context.Context, f *nft.Family, raw *rawTable) error {
	var req nfnl.Batch
	for _, name := range chainNames() {
		ask(&req, f, nft.MsgGetChain, b.cfg.Table, "chain", name)
		req.Text(nft.AttrChainName, name)
	}
	err := b.nf.QueryAll(ctx, &req, func(_ int, m nfnl.Message) error {
		c, err := nft.DecodeChain(m.Attrs)
		if err != nil {
			return err
		}
		policy, err := attrU32(m.Attrs, attrChainPolicy)
		raw.chains[c.Name] = rawChain{c.Chain, policy}
		return err
	})
	return exceptMissing(err)
}

// exceptMissing leaves out of the error that objects are not there.
func exceptMissing(err error) error {
	var refused nfnl.OpErrors
	if one := (*nfnl.OpError)(nil); errors.As(err, &one) {
		refused = nfnl.OpErrors{one}
	}
	errors.As(err, &refused)
	for _, e := range refused {
		if e.Errno != syscall.ENOENT {
			return err
		}
	}
	if len(refused) > 0 && !errors.Is(err, nfnl.ErrAnswersLost) {
		return nil
	}
	return err
}

// attrU32 returns the number in an attribute; 0 if there is none.
func attrU32(attrs []byte, typ uint16) (v uint32, err error) {
	it := nfnl.Attrs(attrs)
	for it.Next() {
		if it.Type() == typ {
			v = it.U32()
		}
	}
	return v, it.Err()
}

func (b *Backend) readRules(ctx context.Context, f *nft.Family, raw *rawTable) error {
	var req nfnl.Batch
	ask(&req, f, nft.MsgGetRule, b.cfg.Table, "rules", "")
	return b.nf.DumpOwn(ctx, &req, func(m nfnl.Message) error {
		r, err := nft.DecodeRule(m.Attrs)
		if err == nil && string(r.Table) == b.cfg.Table {
			chain := string(r.Chain)
			raw.rules[chain] = append(raw.rules[chain], r.Hash())
		}
		return err
	})
}

func (b *Backend) readSets(ctx context.Context, f *nft.Family, raw *rawTable) error {
	var req nfnl.Batch
	ask(&req, f, nft.MsgGetSet, b.cfg.Table, "sets", "")
	return b.nf.DumpOwn(ctx, &req, func(m nfnl.Message) error {
		s, err := nft.DecodeSet(m.Attrs)
		if err == nil {
			raw.sets[s.Name] = s
		}
		return err
	})
}

// readElements reads the elements of a set, by key and end of range.
func (b *Backend) readElements(ctx context.Context, f *nft.Family, table,
	set string) (map[string]nft.Elem, error) {
	var req nfnl.Batch
	ask(&req, f, nft.MsgGetSetElem, table, "elements of set", set)
	req.Text(2, set) // NFTA_SET_ELEM_LIST_SET
	elems := map[string]nft.Elem{}
	err := b.nf.DumpOwn(ctx, &req,
		func(m nfnl.Message) error { return elementsOf(m.Attrs, elems) })
	if err != nil {
		return nil, err
	}
	return elems, nil
}

// elementsOf adds the elements of a message to a set.
func elementsOf(attrs []byte, to map[string]nft.Elem) error {
	return nft.DecodeElements(bytes.Clone(attrs), func(e nft.Elem) error {
		key := string(e.Key) + string(e.KeyEnd)
		if _, twice := to[key]; twice {
			return fmt.Errorf("element %x: %w", e.Key, errMisread)
		}
		to[key] = e
		return nil
	})
}
