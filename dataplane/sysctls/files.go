package sysctls

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
)

// Files accesses the sysctls of one network namespace. After reading a file, it keeps the file
// open. Its methods must not be called concurrently.
type Files struct {
	// In runs a function on a thread that is in the namespace. It is required.
	In func(func() error) error
	// Root is the directory of the files. Empty means "/proc/sys".
	Root string

	open map[string]*os.File
}

// do runs a function with the path of a sysctl, on a thread in the namespace. The kernel looks up
// /proc/sys/net in the namespace of the thread that opens a file (net_ctl_header_lookup in
// net/sysctl_net.c).
func (f *Files) do(name string, fn func(path string) error) error {
	return f.In(func() error { return fn(cmp.Or(f.Root, "/proc/sys") + "/" + name) })
}

// Read reads a sysctl through a file that stays open, so that no thread has to enter the namespace
// again. If the module of the sysctl was reloaded, Read opens the file again.
func (f *Files) Read(_ context.Context, name string) (string, error) {
	var buf [64]byte
	for {
		file, known := f.open[name]
		if !known {
			err := f.do(name, func(path string) (err error) {
				file, err = os.Open(path)
				return err
			})
			if err != nil {
				return "", fmt.Errorf("read sysctl %s: %w", name, err)
			}
			if f.open == nil {
				f.open = map[string]*os.File{}
			}
			f.open[name] = file
		}

		n, err := file.ReadAt(buf[:], 0)
		if n > 0 {
			return strings.TrimSpace(string(buf[:n])), nil
		}
		file.Close()
		delete(f.open, name)
		if !known {
			return "", fmt.Errorf("read sysctl %s: %w", name, err)
		}
	}
}

// Write sets a sysctl.
func (f *Files) Write(_ context.Context, name, value string) error {
	err := f.do(name, func(path string) error { return os.WriteFile(path, []byte(value), 0) })
	if err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", name, value, err)
	}
	return nil
}

// Close closes the files.
func (f *Files) Close() error {
	for _, file := range f.open {
		file.Close()
	}
	f.open = nil
	return nil
}
