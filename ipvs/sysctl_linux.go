package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane"
)

var _ dataplane.Locker = (*Backend)(nil)

// patience is how long a writer waits for its turn.
const patience = 10 * time.Second

// Lock keeps other writers of the network namespace waiting, those of other instances too: it makes
// Backend a [dataplane.Locker]. It waits 10 s at most.
func (b *Backend) Lock(ctx context.Context) (unlock func(), err error) {
	return b.net.turn.Take(ctx, patience)
}

// readSysctls reads the sysctls that a map has.
func (n *network) readSysctls(names map[string]string) (map[string]string, error) {
	m := map[string]string{}
	for name := range names {
		v, err := n.readSysctl(name)
		if err != nil {
			return nil, err
		}
		m[name] = v
	}
	return m, nil
}

// readSysctl reads a sysctl through a file that stays open, so that no thread has to enter the
// namespace. The file is opened again if its module was loaded again.
func (n *network) readSysctl(name string) (string, error) {
	var buf [64]byte
	if f := n.sysctls[name]; f != nil {
		if l, err := f.ReadAt(buf[:], 0); l > 0 {
			return strings.TrimSpace(string(buf[:l])), nil
		} else if err != nil {
			f.Close()
			delete(n.sysctls, name)
		}
	}
	err := n.ns.Do(func() error {
		f, err := os.Open("/proc/sys/" + name)
		if err == nil {
			n.sysctls[name] = f
		}
		return err
	})
	l := 0
	if err == nil {
		l, err = n.sysctls[name].ReadAt(buf[:], 0)
	}
	if l == 0 {
		return "", fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return strings.TrimSpace(string(buf[:l])), nil
}

// setSysctls sets sysctls that are among those that a backend may set. One that is not there, and
// so does nothing, needs not be set.
func (n *network) setSysctls(values map[string]string) error {
	return n.ns.Do(func() error {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if now, err := os.ReadFile("/proc/sys/" + name); err == nil &&
				strings.TrimSpace(string(now)) == values[name] {
				continue
			}
			err := os.WriteFile("/proc/sys/"+name, []byte(values[name]), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("set sysctl %s: %w", name, err)
			}
		}
		return nil
	})
}

// usesIptables reports whether there are tables of x_tables.
func (n *network) usesIptables() (uses bool) {
	err := n.ns.Do(func() error {
		for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
			names, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			uses = uses || len(names) > 0
		}
		return nil
	})
	return uses || err != nil
}
