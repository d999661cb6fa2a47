package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/kernlb/kernlb/internal/threadns"
)

// sysctlFiles are open files of sysctls, by name. A file belongs to the namespace in which it was
// opened.
type sysctlFiles map[string]*os.File

func (s sysctlFiles) close() {
	for _, f := range s {
		f.Close()
	}
}

// read reads a sysctl through a file that stays open, so that no thread has to enter the namespace.
// The file is opened again if its module was loaded again.
func (s sysctlFiles) read(ns *threadns.NS, name string) (string, error) {
	var buf [64]byte
	for {
		f, known := s[name]
		if !known {
			err := ns.Do(func() (err error) {
				f, err = os.Open("/proc/sys/" + name)
				return err
			})
			if err != nil {
				return "", fmt.Errorf("read sysctl %s: %w", name, err)
			}
			s[name] = f
		}
		l, err := f.ReadAt(buf[:], 0)
		if l > 0 {
			return strings.TrimSpace(string(buf[:l])), nil
		}
		f.Close()
		delete(s, name)
		if !known {
			return "", fmt.Errorf("read sysctl %s: %w", name, err)
		}
	}
}

// readTunables reads the named tunables.
func (k *kernel) readTunables(ctx context.Context, names map[string]string) (map[string]string,
	error) {
	values := map[string]string{}
	timeouts := false
	for name := range names {
		if isTimeout(name) {
			timeouts = true
			continue
		}
		v, err := k.sysctls.read(k.ns, name)
		if err != nil {
			return nil, err
		}
		values[name] = v
	}
	if !timeouts {
		return values, nil
	}
	t, err := k.vs.Timeouts(ctx)
	if err != nil {
		return nil, fmt.Errorf("read timeouts: %w", err)
	}
	for name, v := range timeoutValues(t) {
		if _, asked := names[name]; asked {
			values[name] = v
		}
	}
	return values, nil
}

// setTunables sets tunables. A sysctl that does not exist has no effect, so it need not be set.
func (k *kernel) setTunables(ctx context.Context, l []tunable) error {
	timeouts, sysctls := splitTunables(l)
	if len(timeouts) > 0 {
		if err := k.vs.SetTimeouts(ctx, timeoutsOf(timeouts)); err != nil {
			return fmt.Errorf("set timeouts: %w", err)
		}
	}
	if len(sysctls) == 0 {
		return nil
	}
	return k.ns.Do(func() error {
		for _, t := range sysctls {
			err := os.WriteFile("/proc/sys/"+t.name, []byte(t.value), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("set sysctl %s: %w", t.name, err)
			}
		}
		return nil
	})
}
