package nft

import (
	"context"
	"errors"
	"syscall"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// Query asks the kernel for the objects of one table. The tables of other programs neither slow it
// down nor interrupt it.
type Query struct {
	Conn   *rawnl.Conn
	Family *Family
	Table  string
}

// add appends a request for objects of a kind to a batch.
func (q Query) add(b *rawnl.Batch, msg uint8, kind, name string) {
	b.Message(rawnl.SubsysNFTables, msg, 0, q.Family.NFProto, 0, rawnl.Object{Verb: "read",
		Kind: kind, Name: name, Within: "table " + q.Family.Name + " " + q.Table})
	b.Text(AttrTableName, q.Table) // the same attribute for all kinds
}

// Info asks for the table itself, and reports whether it exists.
func (q Query) Info(ctx context.Context) (info TableInfo, exists bool, err error) {
	var req rawnl.Batch
	q.add(&req, MsgGetTable, "table", "")
	replies, err := q.Conn.Query(ctx, &req)
	if errors.Is(err, syscall.ENOENT) {
		return info, false, nil
	}
	if err != nil || len(replies) == 0 {
		return info, false, err
	}
	info, err = DecodeTable(replies[0].Attrs)
	return info, err == nil, err
}

// Sets calls fn with each set.
func (q Query) Sets(ctx context.Context, fn func(SetInfo)) error {
	var req rawnl.Batch
	q.add(&req, MsgGetSet, "sets", "")
	return q.Conn.DumpOwn(ctx, &req, func(m rawnl.Message) error {
		s, err := DecodeSet(m.Attrs)
		if err == nil {
			fn(s)
		}
		return err
	})
}

// Count returns the number of elements of a set, or -1 if the kernel does not report it.
func (q Query) Count(ctx context.Context, set string) (int, error) {
	var req rawnl.Batch
	q.add(&req, MsgGetSet, "set", set)
	req.Text(AttrSetName, set)
	replies, err := q.Conn.Query(ctx, &req)
	if err != nil || len(replies) == 0 {
		return -1, err
	}
	s, err := DecodeSet(replies[0].Attrs)
	return s.Count, err
}

// Comments returns the comments of the elements of a set. A missing set has no comments.
func (q Query) Comments(ctx context.Context, set string) (l []string, err error) {
	err = q.Elements(ctx, set, func(e Elem) error {
		l = append(l, CommentOf(e.UserData))
		return nil
	})
	if errors.Is(err, syscall.ENOENT) {
		err = nil
	}
	return l, err
}

// AppendGetChains appends a request for the chains of all tables of a family.
func AppendGetChains(b *rawnl.Batch, f *Family) {
	b.Message(rawnl.SubsysNFTables, MsgGetChain, 0, f.NFProto, 0, rawnl.Object{Verb: "read",
		Kind: "chains of family", Name: f.Name})
}

// Chains calls fn with each of the named chains that exists. It asks for each name, because the
// kernel cannot list the chains of only one table.
func (q Query) Chains(ctx context.Context, names []string, fn func(ChainInfo)) error {
	var req rawnl.Batch
	for _, name := range names {
		q.add(&req, MsgGetChain, "chain", name)
		req.Text(AttrChainName, name)
	}

	// an answer that cannot be decoded must not be mistaken for a refusal
	var garbled error
	_, err := q.Conn.SendAll(ctx, &req, func(_ int, m rawnl.Message) error {
		var c ChainInfo
		if c, garbled = DecodeChain(m.Attrs); garbled == nil {
			fn(c)
		}
		return garbled
	})
	if garbled != nil {
		return garbled
	}
	return rawnl.Except(err, syscall.ENOENT)
}

// Rules calls fn with each rule of a chain, or of the whole table if chain is empty.
func (q Query) Rules(ctx context.Context, chain string, fn func(RuleInfo) error) error {
	var req rawnl.Batch
	q.add(&req, MsgGetRule, "rules", chain)
	if chain != "" {
		req.Text(AttrRuleChain, chain)
	}
	return q.Conn.DumpOwn(ctx, &req, func(m rawnl.Message) error {
		r, err := DecodeRule(m.Attrs)
		if err != nil {
			return err
		}
		return fn(r)
	})
}

// Elements calls fn with each element of a set. Its bytes are valid until fn returns.
func (q Query) Elements(ctx context.Context, set string, fn func(Elem) error) error {
	var req rawnl.Batch
	q.add(&req, MsgGetSetElem, "elements of set", set)
	req.Text(AttrElemsSet, set)
	return q.Conn.DumpOwn(ctx, &req, func(m rawnl.Message) error {
		return DecodeElements(m.Attrs, fn)
	})
}
