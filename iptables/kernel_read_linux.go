package iptables

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// A reading does not require that other programs pause. The instance's objects change only with its
// version, which is compared before and after the reading. So the rules of its chains, which are
// read chain by chain, are consistent even if other programs commit during the reading. A chain
// that other programs also change is read again if it changed while it was read. The list of chains
// names the chains to read. If every listing was interrupted, the list may lack a chain, so chains
// to which rules jump are read as well.

// reader reads chains and rules, over its own connection.
type reader struct {
	conn     *rawnl.Conn
	req      rawnl.Batch
	decoders map[*nft.Family]*decoder
}

func newReader(conn *rawnl.Conn) *reader {
	rd := &reader{conn: conn, decoders: map[*nft.Family]*decoder{}}
	for _, f := range nft.Families {
		rd.decoders[f] = newDecoder(f)
	}
	return rd
}

func (rd *reader) request(f *nft.Family, msg uint8, verb, kind string) {
	rd.req.Reset()
	object := rawnl.Object{Verb: verb, Kind: kind, Within: "family " + f.Name}
	rd.req.Message(rawnl.SubsysNFTables, msg, 0, f.NFProto, 0, object)
}

func (rd *reader) query(t table) nft.Query {
	return nft.Query{Conn: rd.conn, Family: t.family(), Table: t.kind().String()}
}

// getChain reads a chain without its rules. It returns nil if the chain does not exist.
func (rd *reader) getChain(ctx context.Context, id chainID) (found *rawChain, err error) {
	err = rd.query(id.table).Chains(ctx, []string{id.name}, func(c nft.ChainInfo) {
		found = &rawChain{ChainInfo: c}
	})
	return found, err
}

// readTries limits the readings of an object that other programs keep changing.
const readTries = 10

// listTries limits the listings of the chains.
const listTries = 3

// listChains adds the chains of a family to r, without their rules. whole reports that no commit
// interrupted the listing. Otherwise, the list may lack some chains, and contain chains that no
// longer exist.
func (rd *reader) listChains(ctx context.Context, f *nft.Family, r *raw) (whole bool, err error) {
	for range listTries {
		rd.request(f, nft.MsgGetChain, "list", "chains")
		torn, err := rd.conn.DumpThrough(ctx, &rd.req, func(m rawnl.Message) error {
			c, err := nft.DecodeChain(m.Attrs)
			for _, t := range tablesOf(f) {
				if err == nil && c.Table == t.kind().String() {
					r.put(t.chain(c.Name), &rawChain{ChainInfo: c})
				}
			}

			return err
		})
		if err != nil || !torn {
			return !torn, err
		}
	}

	return false, nil
}

// findChains adds the chains from which all other chains are reached, if an interrupted list lacks
// them.
func (rd *reader) findChains(ctx context.Context, l *layout, f *nft.Family, r *raw) error {
	for _, t := range tablesOf(f) {
		for _, name := range l.names.entries(t.kind()) {
			id := t.chain(name)
			if r.chains[id] != nil {
				continue
			}
			c, err := rd.getChain(ctx, id)
			if err != nil {
				return err
			}
			if c != nil {
				r.put(id, c)
			}
		}
	}

	return nil
}

// dumpRules calls fn for each rule of a chain, and reports whether the dump was interrupted. A
// chain that does not exist has no rules. Dumping chain by chain is fastest, because for each part
// of a dump the kernel walks the rules from the first one (nf_tables_dump_rules in
// nf_tables_api.c).
func (rd *reader) dumpRules(ctx context.Context, id chainID, fn func(foundRule)) (bool, error) {
	rd.request(id.table.family(), nft.MsgGetRule, "list rules of", "chain")
	rd.req.Text(nft.AttrRuleTable, id.table.kind().String())
	rd.req.Text(nft.AttrRuleChain, id.name)
	d := rd.decoders[id.table.family()]
	return rd.conn.DumpThrough(ctx, &rd.req, func(m rawnl.Message) error {
		found, err := d.decodeRuleMessage(m.Attrs)
		if err == nil {
			fn(found)
		}
		return err
	})
}

// rules reads the rules of a chain. A shared chain, which other programs also change, is read again
// if it changed while it was read.
func (rd *reader) rules(ctx context.Context, id chainID, shared bool) ([]foundRule, error) {
	for range readTries {
		var l []foundRule
		torn, err := rd.dumpRules(ctx, id, func(found foundRule) { l = append(l, found) })
		if err != nil || !torn || !shared {
			return l, err
		}
	}

	return nil, fmt.Errorf("%s keeps changing: %w", id, kernelerr.ErrConflict)
}

func rulesOf(found []foundRule) []rule {
	l := make([]rule, len(found))
	for i := range found {
		l[i] = found[i].rule
	}
	return l
}

// readAll reads the instance's objects, and the objects of other programs that affect it. It
// returns the generation of the ruleset before the reading.
func (k *kernel) readAll(ctx context.Context, l *layout) (*raw, uint32, error) {
	gen, err := k.conn.GenID(ctx)
	if err != nil {
		return nil, 0, err
	}
	r := &raw{}
	for _, f := range nft.Families {
		known := len(r.chains)
		for _, t := range tablesOf(f) {
			if _, r.tables[t], err = k.reader.query(t).Info(ctx); err != nil {
				return nil, 0, err
			}
		}

		whole, err := k.reader.listChains(ctx, f, r)
		if err == nil && !whole {
			err = k.reader.findChains(ctx, l, f, r)
		}
		if err != nil {
			return nil, 0, err
		}
		k.reader.decoders[f].limitNames(len(r.chains) - known)
	}

	if err := k.readChains(ctx, l, r); err != nil {
		return nil, 0, err
	}
	same, err := k.stillAt(ctx, l, l.versionsOf(r))
	if err == nil && !same {
		err = fmt.Errorf("another writer of the instance committed: %w", kernelerr.ErrConflict)
	}
	return r, gen.ID, err
}

// stillAt reports whether the instance still has the given versions.
func (k *kernel) stillAt(ctx context.Context, l *layout, versions []chainID) (bool, error) {
	for _, v := range versions {
		if c, err := k.reader.getChain(ctx, v); err != nil || c == nil || c.Use > 0 {
			return false, err
		}
	}

	if len(versions) > 0 {
		return true, nil
	}
	var r raw
	for _, f := range nft.Families {
		if _, err := k.reader.listChains(ctx, f, &r); err != nil {
			return false, err
		}
	}

	return len(l.versionsOf(&r)) == 0, nil
}

// readChains reads the rules of all chains in r that the reading needs, and of the chains to which
// they jump.
func (k *kernel) readChains(ctx context.Context, l *layout, r *raw) error {
	done := map[*rawChain]bool{}
	for {
		var ids []chainID
		for id, c := range r.chains {
			if !done[c] && (l.names.owned(id.name) || l.names.localnet() == id.name ||
				isBase(id) || l.isVersion(id)) {
				done[c] = true
				ids = append(ids, id)
			}
		}

		if len(ids) == 0 {
			return nil
		}
		slices.SortFunc(ids, chainID.compare)
		if err := k.fillAll(ctx, l, r, ids); err != nil {
			return err
		}
		for _, id := range ids { // the list may lack our chains to which rules jump
			for _, rule := range r.chains[id].rules {
				to := rule.leads(id)
				ours := l.names.owned(to.name) || to.name == l.names.localnet()
				if ours && r.chains[to] == nil {
					r.put(to, &rawChain{})
				}
			}
		}
	}
}

// chainsForReader is the number of chains that justify a connection and a thread.
const chainsForReader = 256

// fillAll reads the rules of chains. For many chains it uses several connections in parallel: the
// kernel dumps under RCU only, so the dumps do not wait for each other.
func (k *kernel) fillAll(ctx context.Context, l *layout, r *raw, ids []chainID) error {
	var next atomic.Int64
	work := func(rd *reader) error {
		for {
			n := int(next.Add(1)) - 1
			if n >= len(ids) {
				return nil
			}
			id, c := ids[n], r.chains[ids[n]]
			if !l.names.owned(id.name) {
				found, err := rd.rules(ctx, id, true)
				if err != nil {
					return err
				}
				c.rules = rulesOf(found)
				continue
			}

			c.rules = make([]rule, 0, c.Use)
			add := func(found foundRule) { c.rules = append(c.rules, found.rule) }
			if _, err := rd.dumpRules(ctx, id, add); err != nil {
				return err
			}
		}
	}

	errs := make([]error, min(1+len(ids)/chainsForReader, runtime.GOMAXPROCS(0)))
	var group sync.WaitGroup
	for i := range errs[1:] {
		group.Go(func() {
			conn, err := rawnl.Dial(&rawnl.Config{NetNS: k.ns.NetNS()})
			if err == nil { // otherwise the open connection does all the work
				errs[1+i] = errors.Join(work(newReader(conn)), conn.Close())
			}
		})
	}

	errs[0] = work(k.reader)
	group.Wait()
	return errors.Join(errs...)
}
