package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

// follower keeps a state equal to manifests. It polls the files, which works on every system and
// every file system.
type follower struct {
	options *options
	log     *slog.Logger
	seen    map[string]string            // the texts of the files that were read
	unread  string                       // why others could not be read
	set     atomic.Pointer[manifest.Set] // the files, when they last had no error
}

// state returns the services and endpoints of the files.
func (f *follower) state() servicemodel.State { return f.set.Load().Tracker().State() }

// read reads all files if any has changed since the last call. It reports whether the state
// changed. While any file has an error, the state stays as it was. read returns each error once.
func (f *follower) read() (bool, error) {
	now, errs := f.list()
	unread := fmt.Sprint(errs)
	if maps.Equal(now, f.seen) && unread == f.unread {
		return false, nil
	}
	f.seen, f.unread = now, unread
	set := manifest.NewSet(&kube.Config{Node: servicemodel.Node{Name: f.options.node},
		Annotations: f.options.annotations, Strict: true})
	for _, name := range slices.Sorted(maps.Keys(now)) {
		r, err := set.Put(name, strings.NewReader(now[name]))
		errs = append(errs, err, r.Err())
		for _, p := range r.Warnings() {
			f.log.Warn(p.Error())
		}
	}

	if err := errors.Join(errs...); err != nil {
		return false, err
	}
	for _, p := range set.Unmatched() {
		f.log.Warn(p.Error())
	}
	f.set.Store(set)
	f.log.Info("manifests were read", "files", len(now))
	return true, nil
}

// list returns the texts of the present files: the named ones, and the manifests in directories.
func (f *follower) list() (map[string]string, []error) {
	var errs []error
	all := map[string]string{}
	for _, path := range f.options.paths {
		names := []string{path}
		if entries, err := os.ReadDir(path); err == nil {
			names = nil
			for _, e := range entries {
				name := filepath.Join(path, e.Name())
				st, err := os.Stat(name)
				if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) &&
					!strings.HasPrefix(e.Name(), ".") && // hidden: of editors and volumes
					(err != nil || st.Mode().IsRegular()) { // reading a pipe might not end
					names = append(names, name)
				}
			}
		}

		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				errs = append(errs, fmt.Errorf("read manifest: %w", err))
			} else {
				all[name] = string(text)
			}
		}
	}

	return all, errs
}

// tell logs events of the engine. For refused services it names the place in the manifests.
func (f *follower) tell(ev dataplane.Event) {
	switch ev := ev.(type) {
	case dataplane.Refused:
		file, line, _ := f.set.Load().Locate(ev.Service)
		f.log.Error("service is refused", "at", fmt.Sprintf("%s:%d", file, line), "error", ev.Err)
	case dataplane.Warned:
		f.log.Warn("state warning", "service", ev.Service, "field", ev.Field, "reason", ev.Reason)
	case dataplane.Applied:
		if ev.Stats.Messages > 0 && !ev.Step {
			f.log.Info("applied", "added", ev.Counts.Added, "changed", ev.Counts.Changed,
				"removed", ev.Counts.Removed, "refused", len(ev.Refused))
		}
	case dataplane.Failed:
		f.log.Error("apply failed", "error", ev.Err)
	}
}
