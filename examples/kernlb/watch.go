package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

const (
	// quiet is how long no file may change before what changed is read: programs write many files
	// at once.
	quiet = 20 * time.Millisecond
	// again is how long to wait before a directory is opened again that is gone.
	again = time.Second
)

// watcher keeps an engine's state equal to a directory of manifests.
type watcher struct {
	*program
	dir    string
	set    *manifest.Set
	copies *copies
	broken map[string]bool // files that were last found broken

	unmatched map[string]bool // warnings that were given, see warnUnmatched
	waits     bool            // for services, see wanted
}

// watch keeps the kernel equal to a directory of manifests until it is interrupted. Then the
// kernel stays as it is.
func (p *program) watch(ctx context.Context) error {
	w, err := p.newWatcher()
	if err != nil {
		return err
	}
	files, err := followDir(w.dir)
	if err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	defer func() { files.close() }()
	addrs, err := p.nodeAddrs()
	if err != nil {
		return err
	}
	defer addrs.Close()
	p.node = addrs
	if err := w.readAll(); err != nil {
		return err
	}
	_, done, err := p.keepFlows()
	if err != nil {
		return err
	}
	defer done()
	return p.withEngine(ctx, w.set.Tracker().State(),
		func(ctx context.Context, e *dataplane.Engine) error {
			if err := p.spareKubeProxy(ctx); err != nil {
				return err
			}
			return w.run(ctx, e, files)
		})
}

// newWatcher returns the watcher of the directory that the flags name.
func (p *program) newWatcher() (*watcher, error) {
	if len(p.opts.files) != 1 {
		return nil, fmt.Errorf("%w: watch takes one -f, a directory", errInvalid)
	}
	dir, err := filepath.Abs(p.opts.files[0])
	if err != nil {
		return nil, fmt.Errorf("%w: -f: %w", errInvalid, err)
	}
	p.opts.goOn = true // what is wrong with one service must not hold back the others
	p.log = p.logger()
	return &watcher{program: p, dir: dir, broken: map[string]bool{},
		set: manifest.NewSet(kube.Config{Node: p.opts.node, Annotations: p.opts.annotations,
			Strict: true}),
		copies: newCopies(p.opts.copies, p.opts.instance, dir, p.log)}, nil
}

// logger returns where a program that runs for long says what it does.
func (p *program) logger() *slog.Logger {
	if p.opts.output == "json" {
		return slog.New(slog.NewJSONHandler(p.stderr, nil))
	}
	return slog.New(slog.NewTextHandler(p.stderr, nil))
}

// run applies states, and reads what changes, until ctx is done.
func (w *watcher) run(ctx context.Context, e *dataplane.Engine, files *dirFollower) error {
	defer e.Subscribe(tellManager)()
	closePage, err := w.listen(ctx, e)
	if err != nil {
		return err
	}
	defer closePage()
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	w.send(e)
	go func() { ended <- e.Run(ctx, nil) }()
	err = w.follow(ctx, e, files)
	stop()
	if runErr := <-ended; err == nil {
		err = runErr
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// follow reads what changes, until ctx is done.
func (w *watcher) follow(ctx context.Context, e *dataplane.Engine, files *dirFollower) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	alive, stop := watchdog()
	defer stop()
	defer notify(daemon.SdNotifyStopping)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-alive:
			notify(daemon.SdNotifyWatchdog)
			continue
		case <-hangup:
			if err := w.readAll(); err != nil {
				w.log.Error("read directory", "error", err)
			}
		case c, ok := <-files.changes:
			if !ok {
				w.reopen(ctx, files)
				break
			}
			w.read(collect(c, files.changes))
		}
		w.send(e)
	}
}

// collect adds the changes that follow the first one shortly.
func collect(c changes, more <-chan changes) changes {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case m, ok := <-more:
			if !ok {
				c.all = true
				return c
			}
			c.add(m)
			timer.Reset(quiet)
		case <-timer.C:
			return c
		}
	}
}

// reopen follows the directory again after it was moved, removed or replaced. Until it is there,
// services stay as they were.
func (w *watcher) reopen(ctx context.Context, files *dirFollower) {
	files.close()
	w.log.Error("the directory is gone; services stay as they are", "directory", w.dir)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
		f, err := followDir(w.dir)
		if err != nil {
			continue
		}
		*files = *f
		if err := w.readAll(); err == nil {
			w.log.Info("the directory is there again", "directory", w.dir)
			return
		}
		files.close()
	}
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
		if isManifest(name) {
			w.readFile(name)
		}
	}
}

// readFile takes what a file holds now. If it is broken, its services stay as they were.
func (w *watcher) readFile(name string) {
	path := filepath.Join(w.dir, name)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		w.remove(name)
		return
	}
	if err != nil {
		w.isBroken(name, err)
		return
	}
	r, err := w.set.Put(name, strings.NewReader(string(data)))
	for _, problem := range r.Warnings() {
		w.log.Warn(problem.Error())
	}
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		w.isBroken(name, err)
		return
	}
	if w.broken[name] {
		w.log.Info("manifest is whole again", "file", name)
		delete(w.broken, name)
	}
	w.copies.save(name, data)
}

// isBroken reports a broken file. If the program has only just begun, the services of the last
// whole version count, of which there is a copy.
func (w *watcher) isBroken(name string, err error) {
	w.broken[name] = true
	for _, e := range unjoin(err) {
		w.log.Error("broken manifest: its services stay as they were", "file", name, "error", e)
	}
	if slices.Contains(w.set.Files(), name) {
		return
	}
	data, ok := w.copies.load(name)
	if !ok {
		w.log.Error("no earlier version of the manifest is known", "file", name)
		return
	}
	if r, err := w.set.Put(name, strings.NewReader(string(data))); err != nil || r.Err() != nil {
		w.log.Error("the copy of the manifest's earlier version is broken", "file", name)
	}
}

// remove forgets a file that is gone.
func (w *watcher) remove(name string) {
	w.set.Remove(name)
	w.copies.remove(name)
	delete(w.broken, name)
}

// send hands the newest state to the engine.
func (w *watcher) send(e *dataplane.Engine) {
	s := w.set.Tracker().State()
	w.warnUnmatched()
	if w.wanted(s) {
		e.Set(s)
	}
}

// tellManager tells the service manager what the engine does.
func tellManager(_ context.Context, ev dataplane.Event) {
	switch ev := ev.(type) {
	case dataplane.Applied:
		notify(fmt.Sprintf("%s\nSTATUS=%s holds the services; %d refused", daemon.SdNotifyReady,
			ev.Backend, len(ev.Refused)))
	case dataplane.Failed:
		if !errors.Is(ev.Err, context.Canceled) { // the program is stopped
			notify("STATUS=" + strings.ReplaceAll(ev.Err.Error(), "\n", "; "))
		}
	}
}

// notify tells the service manager something, if one started the program (sd_notify(3)).
func notify(state string) {
	// It is for the manager's eyes: if it does not listen, nothing is lost.
	_, _ = daemon.SdNotify(false, state)
}

// watchdog returns a channel that wants a sign of life each time, if the service manager does.
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
