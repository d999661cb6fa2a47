package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

const (
	// quiet is the time without changes of manifests after which the changes are read, because
	// programs write many files at once. patience is the maximum wait of the first change.
	quiet    = 20 * time.Millisecond
	patience = time.Second
	// again is the wait before a missing directory is opened again.
	again = time.Second
)

// watcher keeps an engine's state equal to a directory of manifests.
type watcher struct {
	*program
	log     *slog.Logger
	dir     string
	files   *dirFollower
	set     *manifest.Set
	copies  *copies
	broken  map[string]string        // files that are broken, and why
	bad     atomic.Pointer[[]string] // the result of problems
	failed  string                   // why no state is applied, see hold
	unkept  map[string][]byte        // whole versions of files that are not applied yet
	applied chan struct{}            // gets a token after each apply

	unmatched map[string]bool // warnings that were printed, see warnUnmatched
	waits     bool            // for services, see wanted
	begun     bool            // the engine has a state
}

// watch keeps the kernel equal to a directory of manifests until it is interrupted. Then the
// kernel stays as it is.
func (p *program) watch(ctx context.Context) error {
	w, err := p.newWatcher()
	if err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	defer func() { w.files.close() }()
	addrs, err := p.nodeAddrs()
	if err != nil {
		return err
	}
	defer addrs.Close()
	if err := w.readAll(); err != nil {
		return err
	}
	cfg := &dataplane.Config{Logger: w.log, Node: addrs, KeepRefused: true,
		Accepted: w.copied(), Strict: p.opts.strict}
	_, done, err := p.keepFlows(cfg)
	if err != nil {
		return err
	}
	defer done()
	return p.withEngine(ctx, w.set.Tracker().State(), cfg,
		func(ctx context.Context, e *dataplane.Engine) error {
			if err := p.spareKubeProxy(ctx); err != nil {
				return err
			}
			return w.run(ctx, e)
		})
}

// newWatcher returns a watcher of the directory that the flags name, and starts to follow it.
func (p *program) newWatcher() (*watcher, error) {
	if len(p.opts.files) != 1 || p.opts.files[0] == "-" {
		return nil, errors.New("watch takes one -f, a directory")
	}
	dir, err := filepath.Abs(p.opts.files[0])
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("watch takes a directory: %w", cmp.Or(err,
			error(&fs.PathError{Op: "-f", Path: dir, Err: syscall.ENOTDIR})))
	}
	files, err := followDir(dir)
	if err != nil {
		return nil, err
	}
	log := p.logger()
	set := manifest.NewSet(kube.Config{Node: p.opts.node, Annotations: p.opts.annotations,
		Strict: true})
	set.AllowEmpty = p.opts.empty
	return &watcher{program: p, log: log, dir: dir, files: files, broken: map[string]string{},
		unkept: map[string][]byte{}, applied: make(chan struct{}, 1), set: set,
		copies: newCopies(p.opts.copies, p.opts.instance, dir, log)}, nil
}

// logger returns the log of a program that runs for long.
func (p *program) logger() *slog.Logger {
	if p.opts.output == "json" {
		return slog.New(slog.NewJSONHandler(p.stderr, nil))
	}
	return slog.New(slog.NewTextHandler(p.stderr, nil))
}

// run applies states, and reads changed files, until ctx is done.
func (w *watcher) run(ctx context.Context, e *dataplane.Engine) error {
	defer e.Subscribe(w.tellManager)()
	closePage, err := w.listen(ctx, e)
	if err != nil {
		return err
	}
	defer closePage()
	if err = w.send(ctx, e); err == nil {
		ctx, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx, nil) }()
		err = w.follow(ctx, e)
		stop()
		err = cmp.Or(err, <-ended)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	w.log.Info("stopped; the kernel stays as it is")
	return nil
}

// follow reads changed files until ctx is done. It waits for everything in one place. So nothing
// keeps it from ending, or from telling the service manager that it is alive.
func (w *watcher) follow(ctx context.Context, e *dataplane.Engine) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	alive, stop := watchdog()
	defer stop()
	defer notify(daemon.SdNotifyStopping)
	var found changes
	var latest time.Time // the end of patience
	read, reopen := time.NewTimer(patience), time.NewTicker(again)
	read.Stop()
	defer read.Stop()
	defer reopen.Stop()
	for {
		select {
		case <-ctx.Done():
			w.keepCopies(e)
			return nil
		case <-alive:
			notify(daemon.SdNotifyWatchdog)
		case <-hangup:
			found.all = true
			read.Reset(0)
		case c, ok := <-w.files.changes:
			if !ok {
				w.log.Error("the directory is gone; services stay as they are", "directory", w.dir)
				w.files.close()
				w.note()
				continue
			}
			if found.none() {
				latest = time.Now().Add(patience)
			}
			found.add(c)
			read.Reset(min(quiet, time.Until(latest)))
		case <-w.applied:
			w.keepCopies(e)
		case <-reopen.C:
			if w.files.changes == nil && w.reopen() {
				read.Reset(0)
			}
		case <-read.C:
			if w.files.changes != nil { // otherwise the directory is away, and no file is removed
				w.read(found)
			}
			found = changes{}
			if err := w.send(ctx, e); err != nil {
				return err
			}
		}
	}
}

// reopen follows the directory again after it was moved, removed or replaced, and reads it. It
// reports whether the directory exists.
func (w *watcher) reopen() bool {
	files, err := followDir(w.dir)
	if err != nil {
		return false
	}
	if err := w.readAll(); err != nil {
		files.close()
		return false
	}
	w.files = files
	w.note()
	w.log.Info("the directory is there again", "directory", w.dir)
	return true
}

// readAll reads all files of the directory.
func (w *watcher) readAll() error {
	names, err := manifestsIn(w.dir)
	if err != nil {
		return err
	}
	for _, name := range w.set.Files() {
		if !slices.Contains(names, name) {
			w.remove(name)
		}
	}
	for _, name := range names {
		w.readFile(name)
	}
	return nil
}

// read reads the files that changed.
func (w *watcher) read(c changes) {
	if c.all {
		if err := w.readAll(); err != nil {
			w.log.Error("read directory", "error", err)
		}
		return
	}
	for name := range c.names {
		w.readFile(name)
	}
}

// readFile reads the present contents of a file.
func (w *watcher) readFile(name string) {
	data, err := readRegular(filepath.Join(w.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		w.remove(name)
		return
	}
	if err == nil {
		err = w.put(name, data)
	}
	if err != nil {
		w.isBroken(name, err)
		return
	}
	if w.broken[name] != "" {
		w.log.Info("manifest is whole again", "file", name)
		delete(w.broken, name)
	}
	w.unkept[name] = data
}

// put adds a version of a file to the set. If the version is broken, the set keeps the previous
// one.
func (w *watcher) put(name string, data []byte) error {
	r, err := w.set.Put(name, bytes.NewReader(data))
	for _, problem := range r.Warnings() {
		w.log.Warn(problem.Error())
	}
	return cmp.Or(err, r.Err())
}

// readRegular reads a regular file that is not too large. Devices and pipes may have no end or no
// writer, so it refuses them.
func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
	case st.Size() > manifest.MaxSize:
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, st.Size(), manifest.MaxSize)
	}
	return io.ReadAll(io.LimitReader(f, manifest.MaxSize+1))
}

// isBroken reports a broken file. The services of its last whole version still count. After a
// start, this version may come from a copy.
func (w *watcher) isBroken(name string, err error) {
	text := "broken manifest: its services stay as they were"
	if !w.knows(name) {
		data, ok := w.copies.load(name)
		if !ok || w.put(name, data) != nil {
			text = "broken manifest: no whole version of it is known"
		}
	}
	w.broken[name] = fmt.Sprintf("%s: %s", name, text)
	for _, e := range unjoin(err) {
		w.log.Error(text, "file", name, "error", e)
		w.broken[name] += "\n" + e.Error()
	}
}

// knows reports whether the set has a whole version of a file.
func (w *watcher) knows(name string) bool { return slices.Contains(w.set.Files(), name) }

// remove removes a file from the set, because it no longer exists.
func (w *watcher) remove(name string) {
	w.set.Remove(name)
	w.copies.remove(name)
	delete(w.broken, name)
	delete(w.unkept, name)
}

// send gives the newest state to the engine. Before the first state, services in the kernel may
// belong to a broken manifest without a known whole version. As long as there is one, services that
// no manifest has stay.
func (w *watcher) send(ctx context.Context, e *dataplane.Engine) error {
	defer w.note()
	w.failed = ""
	s := w.set.Tracker().State()
	w.warnUnmatched()
	if !w.wanted(s) {
		w.failed = "no manifest has a service: the kernel stays as it is"
		return nil
	}
	for name := range w.broken {
		if w.begun || w.knows(name) {
			continue
		}
		o, err := e.Observe(ctx)
		if err != nil {
			return err
		}
		if l := unwanted(o.Table, s); len(l) > 0 {
			w.failed = "the kernel stays as it is until " + name + " is whole or removed: " +
				"services that no other manifest has may be its own"
			w.log.Error("the kernel stays as it is until the manifest is whole or removed: "+
				"services that no other manifest has may be its own", "file", name, "services", l)
			notify(daemon.SdNotifyReady + "\nSTATUS=waits for " + name + ", which is broken")
			return nil
		}
	}
	if !w.begun && !w.opts.strict {
		if hold, err := w.recall(ctx, e, s); err != nil || hold {
			return err
		}
	}
	w.begun = true
	e.Set(s)
	return nil
}

// unwanted returns the services of a table that a state does not have.
func unwanted(held *servicemodel.Table, s servicemodel.State) []string {
	names := map[string]bool{}
	for f := range held.Frontends() {
		if s.Service(f.Service.Name) == nil {
			names[f.Service.Name.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// tellManager informs the service manager of the engine's events.
func (w *watcher) tellManager(_ context.Context, ev dataplane.Event) {
	switch ev := ev.(type) {
	case dataplane.Applied:
		select {
		case w.applied <- struct{}{}:
		default: // it is already known
		}
		text := fmt.Sprintf("%s\nSTATUS=%s holds the services; %d refused", daemon.SdNotifyReady,
			ev.Backend, len(ev.Refused))
		if n := len(w.problems()); n > 0 {
			text += fmt.Sprintf("; %d problems: kernlb status", n)
		}
		notify(text)
	case dataplane.Failed:
		if !errors.Is(ev.Err, context.Canceled) { // the program is stopped
			notify("STATUS=" + strings.ReplaceAll(ev.Err.Error(), "\n", "; "))
		}
	}
}

// notify sends a message to the service manager, if one started the program (sd_notify(3)).
func notify(state string) {
	// The message is only informative, so an error does not matter.
	_, _ = daemon.SdNotify(false, state)
}

// watchdog returns a channel that is ready whenever a sign of life is due, if the service manager
// asks for it.
func watchdog() (alive <-chan time.Time, stop func()) {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(every / 2)
	return t.C, t.Stop
}

// unjoin returns the errors that an error joins.
func unjoin(err error) []error {
	var many interface{ Unwrap() []error }
	if errors.As(err, &many) {
		return many.Unwrap()
	}
	return []error{err}
}
