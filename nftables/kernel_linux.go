package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/plan"
	"github.com/kernlb/kernlb/nftables/internal/read"
)

// kernel is the connection to nf_tables. No other part of the package has a socket.
type kernel struct {
	*threadns.Turn // makes the backend a [backends.Locker]
	reader         read.Reader

	batch rawnl.Batch // the batch to commit
	// gen is the generation of the ruleset after the last check or commit.
	gen uint32
	ns  *threadns.NS
	// sysctls owns the sysctl route_localnet.
	sysctls sysctls.Owner
	// room is the number of bytes of elements that fit into one transaction.
	room int
}

func (k *kernel) open(cfg *Config, at form.Hooks) error {
	if cfg == nil {
		cfg = &Config{}
	}
	ns, err := threadns.Open(cfg.NetNS)
	if err != nil {
		return err
	}
	k.ns = ns
	c := rawnl.Config{NetNS: ns.NetNS()}
	var conns [2]*rawnl.Conn
	var errs [3]error
	conns[0], errs[0] = rawnl.Dial(&c)
	conns[1], errs[1] = rawnl.Dial(&c)
	k.Turn, errs[2] = threadns.OpenTurn(ns.NetNS())
	k.reader = read.NewReader(conns, at, cfg.TakeOver)
	if err = errors.Join(errs[:]...); err == nil {
		k.room = k.reader.Conn.MaxBatch() / 2
		table, _ := cfg.table() // it was checked
		k.sysctls = sysctls.NewLoopback(k.ns.Do,
			sysctls.Guards{NetNS: ns.NetNS(), Table: table, Chain: form.ChainGuard},
			cfg.logger().With(logkey.Backend, Name, logkey.Instance, table))

		// Without CAP_NET_ADMIN the kernel refuses every request to nf_tables, and without
		// nf_tables nfnetlink refuses it as invalid.
		switch _, e := k.reader.Conn.GenID(context.Background()); {
		case errors.Is(e, unix.EPERM):
			err = e
		case errors.Is(e, unix.EINVAL):
			err = fmt.Errorf("%w nf_tables: %w", kernelerr.ErrMissingModule, e)
		}
	}

	if err != nil {
		err = errors.Join(err, k.close())
	}
	return err
}

func (k *kernel) close() error {
	return errors.Join(k.Turn.Close(), k.ns.Close(), k.sysctls.Close(), k.reader.Close())
}

// commit sends the batch as one transaction, unless the batch is empty.
func (k *kernel) commit(ctx context.Context) (backends.Stats, error) {
	if k.batch.Len() == 0 {
		return backends.Stats{}, nil
	}
	stats := backends.Stats{Messages: k.batch.Len(), Bytes: k.batch.Size()}
	err := k.reader.Conn.Commit(ctx, &k.batch, 0)
	if err != nil {
		return stats, err
	}

	// After a foreign commit the kernel's generation differs from this one, and the next Integrity
	// makes a check.
	k.gen = rawnl.NextGenID(k.gen)
	if k.batch.Size() > plan.KeptBatch {
		k.batch = rawnl.Batch{}
	}
	return stats, nil
}

// check lets the kernel check a transaction without committing it.
func (k *kernel) check(ctx context.Context, b *rawnl.Batch) error {
	return k.reader.Conn.Check(ctx,
		b)
}
