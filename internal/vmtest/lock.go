package vmtest

import (
	"context"
	"fmt"
	"time"

	"github.com/gofrs/flock"
)

// lockFile takes a lock on a file, which it makes if need be, and returns what gives the lock
// back. Many can hold it shared, or one exclusive. The kernel drops the locks of a process that
// dies.
func lockFile(ctx context.Context, path string, exclusive bool) (unlock func(), err error) {
	l := flock.New(path)
	lock := l.TryRLockContext
	if exclusive {
		lock = l.TryLockContext
	}
	if _, err := lock(ctx, 50*time.Millisecond); err != nil {
		return nil, fmt.Errorf("wait for another run that holds %s: %w", path, err)
	}
	return func() { _ = l.Unlock() }, nil
}
