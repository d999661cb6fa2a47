package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

// follower keeps a state equal to manifests. It looks at them from time to time, which works on
// every system and every file system.
type follower struct {
	options *options
	log     *slog.Logger

	mu   sync.Mutex
	set  *manifest.Set
	seen map[string]stamp // the files that were read
}

// stamp tells one version of a file from another.
type stamp struct {
	size     int64
	modified time.Time
}

func newFollower(o *options, log *slog.Logger) *follower {
	return &follower{options: o, log: log, seen: map[string]stamp{}, set: manifest.NewSet(
		kube.Config{Node: servicemodel.Node{Name: o.node}, Annotations: o.annotations,
			Strict: true})}
}

// state returns what the files say.
func (f *follower) state() servicemodel.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.set.Tracker().State()
}

// read reads all files for the first time. What is wrong in them is the error.
func (f *follower) read() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, errs := f.update()
	if f.options.demo {
		_, err := f.put("web.yaml", func() (manifest.Result, error) {
			return f.set.Put("web.yaml", strings.NewReader(demoManifest))
		})
		errs = append(errs, err)
	}
	for _, p := range f.set.Unmatched() {
		f.log.Warn(p.Error())
	}
	return errors.Join(errs...)
}

// follow reads what changed, and reports whether anything did. A file that is broken is logged, and
// its services stay as they were.
func (f *follower) follow() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, errs := f.update()
	for _, err := range errs {
		f.log.Error("broken manifest: its services stay as they were", "error", err)
	}
	return changed
}

// update reads the files that changed.
func (f *follower) update() (changed bool, errs []error) {
	now, errs := f.list()
	for name, s := range now {
		if f.seen[name] == s {
			continue
		}
		f.seen[name] = s
		ok, err := f.put(name, func() (manifest.Result, error) { return f.set.PutFile(name) })
		changed = changed || ok
		if err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return changed, errs // what cannot be seen is not gone
	}
	for name := range maps.Clone(f.seen) {
		if _, there := now[name]; !there {
			delete(f.seen, name)
			f.set.Remove(name)
			f.log.Info("manifest is gone", "file", name)
			changed = true
		}
	}
	return changed, errs
}

// put takes what a file holds now, if nothing is wrong in it.
func (f *follower) put(name string, read func() (manifest.Result, error)) (bool, error) {
	r, err := read()
	for _, p := range r.Warnings() {
		f.log.Warn(p.Error())
	}
	if err == nil {
		err = r.Err()
	}
	if err == nil {
		f.log.Info("manifest was read", "file", name, "objects", r.Objects)
	}
	return err == nil, err
}

// list returns the files that there are.
func (f *follower) list() (map[string]stamp, []error) {
	var errs []error
	all := map[string]stamp{}
	add := func(name string) os.FileInfo {
		info, err := os.Stat(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("read manifest: %w", err))
			return nil
		}
		if !info.IsDir() {
			all[name] = stamp{info.Size(), info.ModTime()}
		}
		return info
	}
	for _, path := range f.options.paths {
		if info := add(path); info == nil || !info.IsDir() {
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("read directory of manifests: %w", err))
		}
		for _, e := range entries {
			switch filepath.Ext(e.Name()) {
			case ".yaml", ".yml", ".json":
				if !strings.HasPrefix(e.Name(), ".") { // those belong to editors and volumes
					add(filepath.Join(path, e.Name()))
				}
			}
		}
	}
	return all, errs
}

// tell logs what the engine did, and where the manifests have what it refused.
func (f *follower) tell(_ context.Context, ev dataplane.Event) {
	switch ev := ev.(type) {
	case dataplane.Refused:
		f.mu.Lock()
		file, line, _ := f.set.Locate(ev.Service)
		f.mu.Unlock()
		f.log.Error("service is refused", "at", fmt.Sprintf("%s:%d", file, line), "error", ev.Err)
	case dataplane.Applied:
		if ev.Messages > 0 {
			f.log.Info("applied", "added", ev.Added, "changed", ev.Changed, "removed", ev.Removed,
				"refused", len(ev.Result.Refused))
		}
	case dataplane.Failed:
		f.log.Error("apply failed", "error", ev.Err)
	}
}
