package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// copies keeps the last whole version of each manifest, in case a manifest is broken at a restart.
// Like the kernel's contents, they are gone after a reboot.
type copies struct {
	dir string // empty: no copies
	log *slog.Logger
}

// newCopies returns the copies of a directory's manifests. They are in dir. If dir is empty, they
// are in the runtime directory that systemd made for the program, or else below /run/kernlb.
func newCopies(dir, instance, of string, log *slog.Logger) *copies {
	if dir == "" {
		sum := sha256.Sum256([]byte(instance + "\x00" + of))
		dir = filepath.Join(cmp.Or(os.Getenv("RUNTIME_DIRECTORY"), "/run/kernlb"),
			"manifests-"+hex.EncodeToString(sum[:8]))
	}
	c := &copies{dir: dir, log: log}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.dir = ""
		c.failed(err)
	}
	return c
}

// failed logs that copies cannot be kept.
func (c *copies) failed(err error) {
	c.log.Warn("no copies of manifests are kept: after a restart, services of one that is broken "+
		"by then are not known", "error", err)
}

// save keeps a version of a file.
func (c *copies) save(name string, data []byte) {
	if c.dir == "" {
		return
	}
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		c.failed(err)
		return
	}
	if err := os.Rename(path+".new", path); err != nil {
		c.failed(err)
	}
}

// load returns the copy of a file.
func (c *copies) load(name string) ([]byte, bool) {
	if c.dir == "" {
		return nil, false
	}
	data, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.log.Warn("read the copy of a manifest", "error", err)
	}
	return data, err == nil
}

// remove removes the copy of a file.
func (c *copies) remove(name string) {
	if c.dir != "" {
		os.Remove(filepath.Join(c.dir, name))
	}
}
