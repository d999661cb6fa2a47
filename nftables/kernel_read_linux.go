package nftables

import (
	"bytes"
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
)

// get begins a request about the table.
func (k *kernel) get(f *nftwire.Family, msg uint8, kind, name string) *nfnl.Batch {
	k.req.Reset()
	k.req.Message(nfnl.SubsysNFTables, msg, 0, f.NFProto, 0, nfnl.Object{Verb: "read", Kind: kind, Name: name})
	return &k.req
}

// tableExists asks for a table.
func (k *kernel) tableExists(ctx context.Context, f *nftwire.Family, table string) (bool, error) {
	req := k.get(f, nftwire.MsgGetTable, "table", f.Name+" "+table)
	req.Text(1, table)
	_, err := k.conn.Query(ctx, req)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// readVersion reads the version of an instance. Where the table is not there, or its set is not, there is none.
func (k *kernel) readVersion(ctx context.Context, table string) (version, error) {
	elems, err := k.readElements(ctx, nftwire.IPv4, table, setVersion)
	if errors.Is(err, unix.ENOENT) {
		return version{}, nil
	}
	return versionOf(elems), err
}

// hasVersion asks whether a version is there still; if none was, whether there is none.
func (k *kernel) hasVersion(ctx context.Context, table string, v version) (bool, error) {
	if v.number == 0 {
		now, err := k.readVersion(ctx, table)
		return now == v, err
	}
	req := k.get(nftwire.IPv4, nftwire.MsgGetSetElem, "element of set", setVersion)
	req.Text(1, table)      // NFTA_SET_ELEM_LIST_TABLE
	req.Text(2, setVersion) // NFTA_SET_ELEM_LIST_SET
	var l nftwire.ElemList
	l.Add(nftwire.Elem{Key: v.key()})
	m := req.Nest(3) // NFTA_SET_ELEM_LIST_ELEMENTS
	req.Raw(l.Buf)
	req.End(m)
	_, err := k.conn.Query(ctx, req)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// readTable reads a table, its elements only if asked for; nil if there is none.
func (k *kernel) readTable(ctx context.Context, f *nftwire.Family, table string, elements bool) (*rawTable, error) {
	there, err := k.tableExists(ctx, f, table)
	if err != nil || !there {
		return nil, err
	}
	raw := &rawTable{sets: map[string]nftwire.SetSpec{}, counts: map[string]int{}, chains: map[string]nftwire.Chain{}, hashes: map[string][]uint64{}, elems: map[string][]nftwire.Elem{}}
	if err := k.readSets(ctx, f, table, raw); err != nil {
		return nil, err
	}
	if err := k.readChains(ctx, f, table, raw); err != nil {
		return nil, err
	}
	if err := k.readRules(ctx, f, table, raw); err != nil {
		return nil, err
	}
	if !elements {
		return raw, nil
	}
	for name := range raw.sets {
		if isAffinityMap(name) || isAnonymous(name) || name == setVersion {
			continue
		}
		if raw.elems[name], err = k.readElements(ctx, f, table, name); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

func (k *kernel) readSets(ctx context.Context, f *nftwire.Family, table string, raw *rawTable) error {
	req := k.get(f, nftwire.MsgGetSet, "sets of table", f.Name+" "+table)
	req.Text(1, table) // NFTA_SET_TABLE
	return k.conn.Dump(ctx, req, func(m nfnl.Message) error {
		s, err := nftwire.DecodeSet(m.Attrs)
		if err == nil {
			raw.sets[s.Name] = s.Spec
		}
		if s.Count >= 0 {
			raw.counts[s.Name] = s.Count
		}
		return err
	})
}

func (k *kernel) readChains(ctx context.Context, f *nftwire.Family, table string, raw *rawTable) error {
	req := k.get(f, nftwire.MsgGetChain, "chains of table", f.Name+" "+table)
	return k.conn.Dump(ctx, req, func(m nfnl.Message) error {
		of, c, err := nftwire.DecodeChain(m.Attrs)
		if err == nil && of == table { // the kernel dumps those of all tables
			raw.chains[c.Name] = c
		}
		return err
	})
}

func (k *kernel) readRules(ctx context.Context, f *nftwire.Family, table string, raw *rawTable) error {
	req := k.get(f, nftwire.MsgGetRule, "rules of table", f.Name+" "+table)
	req.Text(1, table) // NFTA_RULE_TABLE
	return k.conn.Dump(ctx, req, func(m nfnl.Message) error {
		of, c, hash, err := nftwire.DecodeRule(m.Attrs)
		if err == nil && of == table {
			raw.hashes[c] = append(raw.hashes[c], hash)
		}
		return err
	})
}

// readLearnt reads how often a client was remembered: only rules that learn have counters.
func (k *kernel) readLearnt(ctx context.Context, f *nftwire.Family, table string) (n uint64, err error) {
	req := k.get(f, nftwire.MsgGetRule, "counters of table", f.Name+" "+table)
	req.Text(1, table) // NFTA_RULE_TABLE
	err = k.conn.DumpRetry(ctx, req, func() { n = 0 }, func(m nfnl.Message) error {
		packets, err := decodeCounters(m.Attrs)
		n += packets
		return err
	})
	return n, err
}

// readCount asks how many elements a set has; -1 if the kernel does not say.
func (k *kernel) readCount(ctx context.Context, f *nftwire.Family, table, set string) (int, error) {
	req := k.get(f, nftwire.MsgGetSet, "set", set)
	req.Text(1, table)
	req.Text(2, set)
	replies, err := k.conn.Query(ctx, req)
	if err != nil || len(replies) == 0 {
		return -1, err
	}
	s, err := nftwire.DecodeSet(replies[0].Attrs)
	return s.Count, err
}

// readElements reads the elements of a set. Their bytes are copied out of the receive buffer, message by message.
func (k *kernel) readElements(ctx context.Context, f *nftwire.Family, table, set string) ([]nftwire.Elem, error) {
	var l []nftwire.Elem
	req := k.get(f, nftwire.MsgGetSetElem, "elements of set", set)
	req.Text(1, table) // NFTA_SET_ELEM_LIST_TABLE
	req.Text(2, set)   // NFTA_SET_ELEM_LIST_SET
	err := k.conn.DumpOwn(ctx, req, func(m nfnl.Message) error {
		return nftwire.DecodeElements(bytes.Clone(m.Attrs), func(e nftwire.Elem) error {
			l = append(l, e)
			return nil
		})
	})
	return l, err
}
