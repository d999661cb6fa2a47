package main

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/kernlb/kernlb/dataplane"
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

// refusedFiles returns the files with refused services.
func (w *watcher) refusedFiles(l []dataplane.Refusal) map[string][]servicemodel.Name {
	files := map[string][]servicemodel.Name{}
	for _, r := range l {
		if file, _, ok := w.set.Locate(r.Service); ok && len(r.Endpoints) == 0 {
			files[file] = append(files[file], r.Service)
		}
	}
	return files
}

// keepCopies copies the files that were applied, so that a restart knows the last accepted
// versions. A file with a refused service keeps its previous copy.
func (w *watcher) keepCopies(e *dataplane.Engine) {
	s := e.Status()
	if len(w.unkept) == 0 || s.Pending() || !w.begun {
		return
	}
	refused := w.refusedFiles(s.Refused)
	for name, data := range w.unkept {
		if refused[name] == nil {
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
	var lost []string
	for _, r := range p.Refused {
		if !r.Kept && len(r.Endpoints) == 0 && holdsService(o.Table, r.Service) {
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
	set := manifest.NewSet(kube.Config{Node: w.opts.node, Annotations: w.opts.annotations,
		Strict: true})
	for name, now := range w.unkept {
		if data, ok := w.copies.load(name); ok && !bytes.Equal(data, now) {
			// A copy was whole when it was made. A broken copy is ignored.
			_, _ = set.Put(name, bytes.NewReader(data))
		}
	}
	return set.Tracker().State()
}

func holdsService(t *servicemodel.Table, n servicemodel.Name) bool {
	for f := range t.Frontends() {
		if f.Service.Name == n {
			return true
		}
	}
	return false
}
