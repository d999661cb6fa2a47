package ipvs

import (
	"bytes"
	"context"
	"errors"
	"syscall"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
)

// request begins a request about the companion table of a family.
func (b *Backend) request(f *nftwire.Family, msg uint8, kind, name string) *nfnl.Batch {
	b.batch.Reset()
	b.batch.Message(nfnl.SubsysNFTables, msg, 0, f.NFProto, 0, nfnl.Object{Verb: "read", Kind: kind, Name: name})
	b.batch.Text(1, b.cfg.Table)
	return &b.batch
}

func (b *Backend) tableExists(ctx context.Context, f *nftwire.Family) (bool, error) {
	_, err := b.nf.Query(ctx, b.request(f, nftwire.MsgGetTable, "table", b.cfg.Table))
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// readTable reads a companion table; nil if there is none.
func (b *Backend) readTable(ctx context.Context, f *nftwire.Family) (*rawTable, error) {
	if there, err := b.tableExists(ctx, f); err != nil || !there {
		return nil, err
	}
	raw := &rawTable{rules: map[string][]uint64{}, elems: map[string]map[string]nftwire.Elem{}}
	err := b.nf.Dump(ctx, b.request(f, nftwire.MsgGetSet, "sets of table", b.cfg.Table), func(m nfnl.Message) error {
		s, err := nftwire.DecodeSet(m.Attrs)
		raw.elems[s.Name] = map[string]nftwire.Elem{}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = b.nf.Dump(ctx, b.request(f, nftwire.MsgGetRule, "rules of table", b.cfg.Table), func(m nfnl.Message) error {
		table, chain, hash, err := nftwire.DecodeRule(m.Attrs)
		if table == b.cfg.Table {
			raw.rules[chain] = append(raw.rules[chain], hash)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for name, elems := range raw.elems {
		req := b.request(f, nftwire.MsgGetSetElem, "elements of set", name)
		req.Text(2, name)
		if err := b.nf.Dump(ctx, req, func(m nfnl.Message) error { return elementsOf(m.Attrs, elems) }); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

// elementsOf adds the elements of a message to a set.
func elementsOf(attrs []byte, to map[string]nftwire.Elem) error {
	return nftwire.DecodeElements(bytes.Clone(attrs), func(e nftwire.Elem) error {
		to[string(e.Key)+string(e.KeyEnd)] = e
		return nil
	})
}
