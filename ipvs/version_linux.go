package ipvs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/sleep"
)

// readVersion reads the version. It does not exist if the set has no element that could be one, or
// is not there.
func (k *kernel) readVersion(ctx context.Context) (version, error) {
	elems, err := k.readElements(ctx, nft.IPv4, k.table, setVersion)
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

// A writer that lives is waited for. A commit of a few changes takes a few milliseconds.
const (
	writerPatience = 50 * time.Millisecond
	writerPause    = 2 * time.Millisecond
)

// readIdleVersion reads the version, and gives a writer that is at work time to end.
func (k *kernel) readIdleVersion(ctx context.Context) (version, error) {
	for end := time.Now().Add(writerPatience); ; {
		v, err := k.readVersion(ctx)
		if err != nil || !v.writing || time.Now().After(end) {
			return v, err
		}
		if err := sleep.For(ctx, writerPause); err != nil {
			return version{}, err
		}
	}
}

// requireVersion fails if the version is another one.
func (k *kernel) requireVersion(ctx context.Context, v version) error {
	now, err := k.readVersion(ctx)
	if err == nil && now != v {
		err = errTaken
	}
	return err
}
