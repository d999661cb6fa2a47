package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// Close closes the sockets and leaves the kernel as it is.
func (b *backend) Close() error { return b.kernel.close() }

// failed wraps an error after which the kernel must be observed again.
func (b *backend) failed(doing string, err error) error {
	b.observed = false
	b.crowded = b.crowded || errors.Is(err, unix.ENFILE)
	if b.pl.Owning != nil {
		// unless another program has committed since the reading, the tables differ from what was
		// read
		b.doubted = b.pl.Version
	}

	if lacks := nft.Missing(err, &b.kernel.batch); lacks != nil {
		return fmt.Errorf("nftables: %s: %w", doing, lacks)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENFILE) ||
		errors.Is(err, rawnl.ErrGenerationChanged) || errors.Is(err, rawnl.ErrDumpInterrupted) {
		return fmt.Errorf("nftables: %s: %w: %w", doing, kernelerr.ErrConflict, err)
	}

	return fmt.Errorf("nftables: %s: %w", doing, err)
}

// readError wraps an error of a reading. It is a conflict if another program changed the objects
// while they were read.
func readError(doing string, err error) error {
	if errors.Is(err, rawnl.ErrDumpInterrupted) || errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w: %w", kernelerr.ErrConflict, err)
	}
	return fmt.Errorf("nftables: %s: %w", doing, err)
}

// Blame waits until another program changes the tables, and returns that program. Blame makes the
// backend a [backends.Blamer].
func (b *backend) Blame(ctx context.Context) (backends.Program, error) {
	k := &b.kernel
	g, err := nft.Author(ctx, k.ns, k.reader.Conn, func(c nft.Changed) bool {
		return c.Table == b.pl.Table
	})
	if err != nil {
		return backends.Program{}, fmt.Errorf("nftables: blame: %w", err)
	}
	return backends.Program{Name: g.ProcName, Thread: g.ProcPID}, nil
}
