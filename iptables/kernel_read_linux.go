package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Reading needs no quiet kernel. What belongs to the instance changes only with its version,
// which is compared before and after; so the rules of its chains, asked for chain by chain, are
// right whoever commits meanwhile. Of chains that others change too, those are read again that
// were changed while they were read. The list of chains tells which are to be read: if it was
// interrupted each time, a chain may be missing in it, so chains that rules lead to are read as
// well.

// reader asks for chains and rules, over a connection of its own.
type reader struct {
	conn     *rawnl.Conn
	req      rawnl.Batch
	decoders [2]*decoder
}

func newReader(conn *rawnl.Conn) *reader {
	rd := &reader{conn: conn}
	for i, f := range nft.Families {
		rd.decoders[i] = newDecoder(f)
	}
	return rd
}

func (rd *reader) request(i uint8, msg uint8, verb, kind string) {
	rd.req.Reset()
	f := nft.Families[i]
	object := rawnl.Object{Verb: verb, Kind: kind, Within: "family " + f.Name}
	rd.req.Message(rawnl.SubsysNFTables, msg, 0, f.NFProto, 0, object)
}

// hasTable reports whether a table is there.
func (rd *reader) hasTable(ctx context.Context, i uint8, t tableID) (bool, error) {
	rd.request(i, nft.MsgGetTable, "get", "table")
	rd.req.Text(nft.AttrTableName, t.String())
	_, err := rd.conn.Query(ctx, &rd.req)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// hasChain reports whether a chain is there.
func (rd *reader) hasChain(ctx context.Context, id chainID) (bool, error) {
	c, err := rd.getChain(ctx, id)
	return c != nil, err
}

// getChain asks for a chain, without its rules; nil if it is not there.
func (rd *reader) getChain(ctx context.Context, id chainID) (*rawChain, error) {
	rd.request(id.family, nft.MsgGetChain, "get", "chain")
	rd.req.Text(nft.AttrChainTable, id.table.String())
	rd.req.Text(nft.AttrChainName, id.name)
	replies, err := rd.conn.Query(ctx, &rd.req)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, err
	case len(replies) == 0:
		return nil, fmt.Errorf("get %s: %w: no reply", id, rawnl.ErrMalformed)
	}
	c, err := nft.DecodeChain(replies[0].Attrs)
	return &rawChain{ChainInfo: c}, err
}

// readTries bounds how often something is read again since somebody changed it meanwhile.
const readTries = 10

// listTries bounds how often the chains are listed again.
const listTries = 3

// listChains adds the chains of a family to r, without their rules. It reports whether all were
// listed in one go; if not, some may be missing, and some may be gone.
func (rd *reader) listChains(ctx context.Context, i uint8, r *raw) (whole bool, err error) {
	for range listTries {
		rd.request(i, nft.MsgGetChain, "list", "chains")
		torn, err := rd.conn.DumpThrough(ctx, &rd.req, func(m rawnl.Message) error {
			c, err := nft.DecodeChain(m.Attrs)
			if t, ok := tableNamed(c.Table); err == nil && ok {
				r.put(chainID{i, t, c.Name}, &rawChain{ChainInfo: c})
			}
			return err
		})
		if err != nil || !torn {
			return !torn, err
		}
	}
	return false, nil
}

// findChains adds chains that are missing in an interrupted list, and that all others are reached
// from.
func (rd *reader) findChains(ctx context.Context, l *layout, i uint8, r *raw) error {
	for _, t := range tables {
		for _, name := range l.names.entries(t) {
			id := chainID{i, t, name}
			if r.chain(id) != nil {
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

func tableNamed(name string) (tableID, bool) {
	for _, t := range tables {
		if t.String() == name {
			return t, true
		}
	}
	return 0, false
}

// dumpRules calls fn for each rule of a chain, and reports whether it was interrupted. A chain
// that is not there has no rules. Chain by chain it goes fastest: for each part of a dump the
// kernel walks the rules from the first (nf_tables_dump_rules in nf_tables_api.c).
func (rd *reader) dumpRules(ctx context.Context, id chainID, fn func(foundRule)) (bool, error) {
	rd.request(id.family, nft.MsgGetRule, "list rules of", "chain")
	rd.req.Text(nft.AttrRuleTable, id.table.String())
	rd.req.Text(nft.AttrRuleChain, id.name)
	d := rd.decoders[id.family]
	return rd.conn.DumpThrough(ctx, &rd.req, func(m rawnl.Message) error {
		found, err := d.decodeRuleMessage(m.Attrs)
		if err == nil {
			fn(found)
		}
		return err
	})
}

// rules reads the rules of a chain that only the instance changes.
func (rd *reader) rules(ctx context.Context, id chainID) (l []foundRule, err error) {
	_, err = rd.dumpRules(ctx, id, func(found foundRule) { l = append(l, found) })
	return l, err
}

// sharedRules reads the rules of a chain that others change, too: again, if they did meanwhile.
func (rd *reader) sharedRules(ctx context.Context, id chainID) ([]foundRule, error) {
	for range readTries {
		var l []foundRule
		torn, err := rd.dumpRules(ctx, id, func(found foundRule) { l = append(l, found) })
		if err != nil || !torn {
			return l, err
		}
	}
	return nil, fmt.Errorf("%s keeps changing: %w", id, dataplane.ErrConflict)
}

// fill reads the rules of a chain.
func (rd *reader) fill(ctx context.Context, l *layout, id chainID, c *rawChain) error {
	if !l.names.owned(id.name) {
		found, err := rd.sharedRules(ctx, id)
		c.rules = rulesOf(found)
		return err
	}
	c.rules = make([]rule, 0, c.Use)
	_, err := rd.dumpRules(ctx, id, func(found foundRule) { c.rules = append(c.rules, found.rule) })
	return err
}

func rulesOf(found []foundRule) []rule {
	l := make([]rule, len(found))
	for i := range found {
		l[i] = found[i].rule
	}
	return l
}

// readAll reads what the tables hold of the instance, and what of others matters to it. The
// generation is that from before.
func (k *kernel) readAll(ctx context.Context, l *layout) (*raw, uint32, error) {
	gen, err := k.conn.GenID(ctx)
	if err != nil {
		return nil, 0, err
	}
	r := &raw{}
	for i := range nft.Families {
		for _, t := range tables {
			if r.tables[i][t].exists, err = k.reader.hasTable(ctx, uint8(i), t); err != nil {
				return nil, 0, err
			}
		}
		whole, err := k.reader.listChains(ctx, uint8(i), r)
		if err == nil && !whole {
			err = k.reader.findChains(ctx, l, uint8(i), r)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	if err := k.readChains(ctx, l, r); err != nil {
		return nil, 0, err
	}
	same, err := k.stillAt(ctx, l, l.versionsOf(r))
	if err == nil && !same {
		err = fmt.Errorf("another writer of the instance committed: %w", dataplane.ErrConflict)
	}
	if err == nil {
		r.routeLocalnet, err = k.sysctl.Get()
	}
	return r, gen.ID, err
}

// stillAt reports whether the versions of the instance are those given.
func (k *kernel) stillAt(ctx context.Context, l *layout, versions []uint32) (bool, error) {
	for _, v := range versions {
		if there, err := k.reader.hasChain(ctx, l.versionID(v)); err != nil || !there {
			return false, err
		}
	}
	if len(versions) > 0 {
		return true, nil
	}
	var r raw
	_, err := k.reader.listChains(ctx, 0, &r)
	return len(l.versionsOf(&r)) == 0, err
}

// wanted reports whether the rules of a chain matter.
func (l *layout) wanted(id chainID) bool {
	n := l.names
	return n.owned(id.name) || n.localnet() == id.name || isBase(id.table, id.name) ||
		id.in(0, filter) && mayGuard(id.name)
}

// readChains reads the rules of all chains in r that matter, and of those that they lead to.
func (k *kernel) readChains(ctx context.Context, l *layout, r *raw) error {
	done := map[*rawChain]bool{}
	for {
		var ids []chainID
		for i := range nft.Families {
			for _, t := range tables {
				for name, c := range r.tables[i][t].chains {
					if id := (chainID{uint8(i), t, name}); !done[c] && l.wanted(id) {
						done[c] = true
						ids = append(ids, id)
					}
				}
			}
		}
		if len(ids) == 0 {
			return nil
		}
		slices.SortFunc(ids, chainID.compare)
		if err := k.fillAll(ctx, l, r, ids); err != nil {
			return err
		}
		r.addMissing(l, ids)
	}
}

// addMissing adds the chains of ours that rules lead to and that are not in the list.
func (r *raw) addMissing(l *layout, read []chainID) {
	for _, id := range read {
		for _, rule := range r.chain(id).rules {
			if to := rule.leads(id); l.names.leadable(to.name) && r.chain(to) == nil {
				r.put(to, &rawChain{ChainInfo: nft.ChainInfo{Chain: nft.Chain{Name: to.name},
					Table: to.table.String()}})
			}
		}
	}
}

// chainsForReader is how many chains are worth a connection and a thread.
const chainsForReader = 256

// readersFor returns how many connections read so many chains on so many processors.
func readersFor(chains, processors int) int {
	return min(1+chains/chainsForReader, processors)
}

// fillAll reads the rules of chains, of many over several connections at a time: a dump runs
// under RCU only, so that they do not wait for each other.
func (k *kernel) fillAll(ctx context.Context, l *layout, r *raw, ids []chainID) error {
	var next atomic.Int64
	work := func(rd *reader) error {
		for {
			n := int(next.Add(1)) - 1
			if n >= len(ids) {
				return nil
			}
			if err := rd.fill(ctx, l, ids[n], r.chain(ids[n])); err != nil {
				return err
			}
		}
	}
	errs := make([]error, readersFor(len(ids), runtime.GOMAXPROCS(0)))
	var group sync.WaitGroup
	for i := range errs[1:] {
		group.Go(func() {
			conn, err := rawnl.Dial(&rawnl.Config{NetNS: k.sysctl.NS.FD()})
			if err == nil { // otherwise, the one that is open does it all
				errs[1+i] = errors.Join(work(newReader(conn)), conn.Close())
			}
		})
	}
	errs[0] = work(k.reader)
	group.Wait()
	return errors.Join(errs...)
}

// handles reads the handles of the rules that a plan changes, and makes sure that they are those
// it was made for.
func (b *Backend) handles(ctx context.Context, p *plan) (map[chainID]handles, error) {
	edited := p.edited()
	known := make(map[chainID]handles, len(edited))
	for _, x := range edited {
		read := b.kernel.reader.rules
		if x.shared {
			read = b.kernel.reader.sharedRules
		}
		found, err := read(ctx, x.id)
		if err != nil {
			return nil, err
		}
		h, ok := b.l.handlesOf(x, found)
		if !ok {
			return nil, fmt.Errorf("%s is not as it was read: %w", x.id, dataplane.ErrConflict)
		}
		known[x.id] = h
	}
	return known, nil
}

// readGuards reads what there is about the sysctl route_localnet.
func (k *kernel) readGuards(ctx context.Context, l *layout) (localnet, error) {
	r := &raw{}
	if _, err := k.reader.listChains(ctx, 0, r); err != nil {
		return localnet{}, err
	}
	chains := r.tables[0][filter].chains
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		if !mayGuard(name) {
			continue
		}
		found, err := k.reader.sharedRules(ctx, chainID{0, filter, name})
		if err != nil {
			return localnet{}, err
		}
		chains[name].rules = rulesOf(found)
	}
	var err error
	r.routeLocalnet, err = k.sysctl.Get()
	return l.localnetOf(r), err
}
