package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/examples/command/accepted"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

// problems returns the problems of the manifests, one line each. Several goroutines may call it.
func (w *watcher) problems() []string {
	if l := w.bad.Load(); l != nil {
		return *l
	}
	return nil
}

// note updates the result of problems.
func (w *watcher) note() {
	var l []string
	if w.files.changes == nil {
		l = append(l, w.dir+" is gone: services stay as they are")
	}
	if w.failed != "" {
		l = append(l, w.failed)
	}
	for _, name := range slices.Sorted(maps.Keys(w.broken)) {
		l = append(l, strings.ReplaceAll(w.broken[name], "\n", "; "))
	}
	for _, p := range w.set.Doubles() {
		l = append(l, p.Error())
	}
	w.bad.Store(&l)
}

// keepCopies copies the files that were applied, so that a restart knows the last accepted
// versions. A file with a refused service keeps its previous copy.
func (w *watcher) keepCopies(e *dataplane.Engine) {
	s := e.Status()
	if len(w.unkept) == 0 || s.Pending() || !w.begun {
		return
	}
	refused := map[string]bool{} // files with refused services
	for _, r := range s.Refused {
		if file, _, ok := w.set.Locate(r.Service); ok && len(r.Endpoints) == 0 {
			refused[file] = true
		}
	}

	for name, data := range w.unkept {
		if !refused[name] {
			w.copies.save(name, data)
			delete(w.unkept, name)
		}
	}
}

// recall reports whether the first state must wait, because a refused service is in the kernel and
// no copy of its file has an earlier definition. Then nothing is applied.
func (w *watcher) recall(ctx context.Context, e *dataplane.Engine,
	s servicemodel.State) (hold bool, err error) {
	p, err := e.Plan(ctx, s)
	if err != nil || len(p.Refused) == 0 {
		return false, nil //nolint:nilerr // Run retries, and reports the error
	}
	o, err := e.Observe(ctx)
	if err != nil {
		return false, err
	}
	held := servicesOf(o.Table)
	var lost []string
	for _, r := range p.Refused {
		if !r.Kept && len(r.Endpoints) == 0 && slices.Contains(held, r.Service) {
			lost = append(lost, r.Service.String())
			w.log.Error("the kernel stays as it is until the service is accepted or removed: it "+
				"is refused, and nothing says what it was", "service", r.Service.String(),
				"reason", r.Err)
		}
	}

	if len(lost) == 0 {
		return false, nil
	}
	w.failed = "the kernel stays as it is: refused now, and nothing says what they were: " +
		strings.Join(lost, ", ")
	notify(daemon.SdNotifyReady + "\nSTATUS=waits for services that are refused")
	return true, nil
}

// copied returns the state of the copies that differ from their files.
func (w *watcher) copied() servicemodel.State {
	set := manifest.NewSet(&kube.Config{Node: w.opts.node, Annotations: w.opts.annotations,
		Strict: true})
	for name, now := range w.unkept {
		if data, ok := w.copies.load(name); ok && !bytes.Equal(data, now) {
			// A copy was whole when it was made. A broken copy is ignored.
			_, _ = set.Put(name, bytes.NewReader(data))
		}
	}

	return set.Tracker().State()
}

// copies keeps the last whole version of each manifest, in case a manifest is broken at a restart.
// Like the kernel's contents, they are gone after a reboot.
type copies struct {
	dir string // empty: no copies
	log *slog.Logger
}

// newCopies returns the copies of a directory's manifests. They are in dir. If dir is empty, they
// are below [accepted.Path].
func newCopies(dir, instance, of string, log *slog.Logger) *copies {
	if dir == "" {
		sum := sha256.Sum256([]byte(instance + "\x00" + of))
		dir = accepted.Path("manifests-" + hex.EncodeToString(sum[:8]))
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

// save keeps a version of a file. If it cannot, it keeps none, because an older one is not what the
// kernel holds.
func (c *copies) save(name string, data []byte) {
	if c.dir == "" {
		return
	}
	path := filepath.Join(c.dir, name)
	if err := accepted.Replace(path, data); err != nil {
		os.Remove(path)
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

// keep removes the copies of the files for which is does not hold. They went while no program
// followed the directory, and their services with them.
func (c *copies) keep(is func(name string) bool) {
	names, _ := manifestsIn(c.dir) // without copies there are no names
	for _, name := range names {
		if !is(name) {
			c.remove(name)
		}
	}
}

// remove removes the copy of a file.
func (c *copies) remove(name string) {
	if c.dir != "" {
		os.Remove(filepath.Join(c.dir, name))
	}
}
