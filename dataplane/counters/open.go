package counters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Counters are the traffic counters of one network namespace. They are safe for concurrent use,
// also by several processes.
type Counters struct {
	conn  *rawnl.Conn
	table string
	size  int // of the sets
}

// Open opens the counters without switching them on or off. It needs CAP_NET_ADMIN, and
// CAP_SYS_ADMIN for another network namespace. Errors match the sentinels of package dataplane.
func Open(cfg *Config) (*Counters, error) {
	cfg = cmp.Or(cfg, &Config{})
	c := &Counters{table: cmp.Or(cfg.Table, defaultTable), size: setSize}
	var err error
	if c.conn, err = rawnl.Dial(&rawnl.Config{NetNS: cfg.NetNS}); err != nil {
		return nil, fmt.Errorf("counters: open: %w",
			nft.Explain(err, nil, nft.Running()))
	}

	return c, nil
}

// Close closes the socket without switching the counters on or off.
func (c *Counters) Close() error { return c.conn.Close() }

// families returns the families for which the kernel supports tables.
func (c *Counters) families(ctx context.Context) (l []*nft.Family, err error) {
	for _, f := range nft.Families {
		var b rawnl.Batch
		nft.NewEncoder(&b, f, c.table).AddTable()
		lacks := nft.Explain(c.conn.Check(ctx, &b), &b, nft.Running())
		switch {
		case lacks == nil:
			l = append(l, f)
		case !errors.Is(lacks, syscall.EOPNOTSUPP):
			return nil, lacks
		}

		err = errors.Join(err, lacks)
	}

	if len(l) > 0 {
		err = nil
	}
	return l, err
}

// Start starts counting from zero. If the counters are on already, they continue.
func (c *Counters) Start(ctx context.Context) error {
	families, err := c.families(ctx)
	if err != nil {
		return fmt.Errorf("counters: start: %w", err)
	}
	for _, f := range families {
		var b rawnl.Batch
		e, p := nft.NewEncoder(&b, f, c.table), program(f)
		e.AddTable()
		for _, name := range setNames {
			e.AddSet(set(f, name, c.size))
		}
		p.WriteChains(e)
		p.WriteRules(e)
		err := c.conn.Commit(ctx, &b, 0)
		if err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("counters: start: %w", nft.Explain(err, &b, nft.Running()))
		}
	}

	return nil
}

// Stop stops counting, and deletes the counts. Stopping counters that are off is not an error.
func (c *Counters) Stop(ctx context.Context) error {
	families, err := c.families(ctx)
	if err != nil {
		return fmt.Errorf("counters: stop: %w", err)
	}
	var b rawnl.Batch
	for _, f := range families {
		e := nft.NewEncoder(&b, f, c.table)
		e.EnsureTable()
		e.DeleteTable()
	}

	if err := c.conn.Commit(ctx, &b, 0); err != nil {
		return fmt.Errorf("counters: stop: %w", err)
	}
	return nil
}

// Read returns the counts, or [ErrOff] if the counters are off.
func (c *Counters) Read(ctx context.Context) (*Reading, error) {
	r := &Reading{Pairs: map[Pair]Values{}}
	for _, f := range nft.Families {
		if err := c.readFamily(ctx, r, f); err != nil {
			return nil, fmt.Errorf("counters: read: %w", err)
		}
	}

	return r, nil
}

// readFamily reads the sets of a family, unless the kernel lacks the family.
func (c *Counters) readFamily(ctx context.Context, r *Reading, f *nft.Family) error {
	for _, name := range setNames {
		if err := c.read(ctx, r, f, name); err != nil {
			families, lacks := c.families(ctx)
			if lacks == nil && !slices.Contains(families, f) {
				return nil
			}
			return err
		}
	}

	return nil
}

func (c *Counters) read(ctx context.Context, r *Reading, f *nft.Family, name string) error {
	var b rawnl.Batch
	b.Message(rawnl.SubsysNFTables, nft.MsgGetSetElem, 0, f.NFProto, 0, rawnl.Object{Verb: "read",
		Kind: "set", Name: name, Within: "table " + f.Name + " " + c.table})
	b.Text(nft.AttrElemsTable, c.table)
	b.Text(nft.AttrElemsSet, name)
	n := 0
	err := c.conn.DumpOwn(ctx, &b, func(m rawnl.Message) error {
		return nft.DecodeElements(m.Attrs, func(e nft.Elem) error {
			if n++; !r.add(f, name, e) {
				return fmt.Errorf("%w: a key of %d bytes", rawnl.ErrMalformed, len(e.Key))
			}
			return nil
		})
	})
	r.Full = r.Full || n >= c.size
	if errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("%w: %w", ErrOff, err)
	}
	return err
}
