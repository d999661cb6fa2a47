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
func (b *Backend) request(f *family, msg uint8, kind, name string) *nfnl.Batch {
	b.batch.Reset()
	b.batch.Message(nfnl.SubsysNFTables, msg, 0, f.nfproto, 0, nfnl.Object{Verb: "read", Kind: kind, Name: name})
	b.batch.Text(1, b.cfg.Table)
	return &b.batch
}

func (b *Backend) tableExists(ctx context.Context, f *family) (bool, error) {
	_, err := b.nf.Query(ctx, b.request(f, msgGetTable, "table", b.cfg.Table))
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// readTable reads a companion table; nil if there is none.
func (b *Backend) readTable(ctx context.Context, f *family) (*rawTable, error) {
	if there, err := b.tableExists(ctx, f); err != nil || !there {
		return nil, err
	}
	raw := &rawTable{rules: map[string][]uint64{}, elems: map[string]map[string]nftwire.Elem{}}
	err := b.nf.Dump(ctx, b.request(f, msgGetSet, "sets of table", b.cfg.Table), func(m nfnl.Message) error {
		name, err := decodeSetName(m.Attrs)
		raw.elems[name] = map[string]nftwire.Elem{}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = b.nf.Dump(ctx, b.request(f, msgGetRule, "rules of table", b.cfg.Table), func(m nfnl.Message) error {
		table, chain, hash, err := decodeRule(m.Attrs)
		if table == b.cfg.Table {
			raw.rules[chain] = append(raw.rules[chain], hash)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for name, elems := range raw.elems {
		req := b.request(f, msgGetSetElem, "elements of set", name)
		req.Text(2, name)
		if err := b.nf.Dump(ctx, req, func(m nfnl.Message) error { return elementsOf(m.Attrs, elems) }); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

// elementsOf adds the elements of a message to a set.
func elementsOf(attrs []byte, to map[string]nftwire.Elem) error {
	it := nfnl.Attrs(attrs)
	for it.Next() {
		if it.Type() != 3 { // NFTA_SET_ELEM_LIST_ELEMENTS
			continue
		}
		if err := nftwire.DecodeElems(bytes.Clone(it.Data()), func(e nftwire.Elem) error {
			to[string(e.Key)+string(e.KeyEnd)] = e
			return nil
		}); err != nil {
			return err
		}
	}
	return it.Err()
}
