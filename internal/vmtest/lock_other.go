//go:build !unix

package vmtest

import (
	"context"
	"errors"
)

func lockFile(context.Context, string, bool) (func(), error) {
	return nil, errors.New("lock the cache: not supported: the VM runner needs a Debian machine")
}
