package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"

	"github.com/kernlb/kernlb/internal/threadns"
)

// sysctlFiles are open files of sysctls, by name: a file is of the namespace in which it was
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
	if f := s[name]; f != nil {
		if l, err := f.ReadAt(buf[:], 0); l > 0 {
			return strings.TrimSpace(string(buf[:l])), nil
		} else if err != nil {
			f.Close()
			delete(s, name)
		}
	}
	err := ns.Do(func() error {
		f, err := os.Open("/proc/sys/" + name)
		if err == nil {
			s[name] = f
		}
		return err
	})
	l := 0
	if err == nil {
		l, err = s[name].ReadAt(buf[:], 0)
	}
	if l == 0 {
		return "", fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return strings.TrimSpace(string(buf[:l])), nil
}

// readTunables reads the tunables that a map has.
func (k *kernel) readTunables(ctx context.Context, names map[string]string) (map[string]string,
	error) {
	m := map[string]string{}
	var timeouts map[string]string
	for name := range names {
		var err error
		switch {
		case !isTimeout(name):
			m[name], err = k.sysctls.read(k.ns, name)
		case timeouts == nil:
			if timeouts, err = k.readTimeouts(ctx); err == nil {
				m[name] = timeouts[name]
			}
		default:
			m[name] = timeouts[name]
		}
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// readTimeouts reads the timeouts of IPVS.
func (k *kernel) readTimeouts(ctx context.Context) (map[string]string, error) {
	t, err := k.vs.Timeouts(ctx)
	if err != nil {
		return nil, fmt.Errorf("read timeouts: %w", err)
	}
	return timeoutValues(t), nil
}

// setTunables sets tunables. A sysctl that is not there does nothing, so it need not be set.
func (k *kernel) setTunables(ctx context.Context, l []tunable) error {
	timeouts, others := map[string]string{}, map[string]string{}
	for _, t := range l {
		if isTimeout(t.name) {
			timeouts[t.name] = t.value
		} else {
			others[t.name] = t.value
		}
	}
	if len(timeouts) > 0 {
		if err := k.vs.SetTimeouts(ctx, timeoutsOf(timeouts)); err != nil {
			return fmt.Errorf("set timeouts: %w", err)
		}
	}
	if len(others) == 0 {
		return nil
	}
	return k.ns.Do(func() error {
		for name, value := range maps.All(others) {
			err := os.WriteFile("/proc/sys/"+name, []byte(value), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("set sysctl %s: %w", name, err)
			}
		}
		return nil
	})
}
