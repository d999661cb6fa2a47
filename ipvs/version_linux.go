package ipvs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/wait"
)

// readVersion reads the version. It does not exist if the set does not exist, or has no valid
// element.
func (k *kernel) readVersion(ctx context.Context) (version, error) {
	elems, err := readElements(ctx, nft.Query{Conn: k.nf, Family: nft.IPv4, Table: k.table},
		setVersion)
	if errors.Is(err, syscall.ENOENT) {
		return version{}, nil
	}
	if err != nil {
		return version{}, fmt.Errorf("read the version: %w", err)
	}
	if v, err := versionOf(elems); err == nil {
		return v, nil
	}
	return version{}, nil
}

// The times that readIdleVersion waits for a writer that is alive. A commit of a few changes takes
// a few milliseconds.
const (
	writerPatience = 50 * time.Millisecond
	writerPause    = 2 * time.Millisecond
)

// readIdleVersion reads the version. If a writer is at work, it first waits some time for the
// writer to end.
func (k *kernel) readIdleVersion(ctx context.Context) (version, error) {
	for end := time.Now().Add(writerPatience); ; {
		v, err := k.readVersion(ctx)
		if err != nil || !v.writing || time.Now().After(end) {
			return v, err
		}
		if err := wait.For(ctx, writerPause); err != nil {
			return version{}, err
		}
	}
}

// requireVersion fails if the present version is not v.
func (k *kernel) requireVersion(ctx context.Context, v version) error {
	now, err := k.readVersion(ctx)
	if err == nil && now != v {
		err = errTaken
	}
	return err
}
