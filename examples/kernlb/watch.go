package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
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
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/examples/command/feedback"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

const (
	// quiet is the time without changes of manifests after which the changes are read, because
	// programs write many files at once. patience is the maximum wait of the first change.
	quiet    = 20 * time.Millisecond
	patience = time.Second
	// again is the wait before a missing directory is opened again. It is also the time between two
	// checks whether another directory is in its place.
	again = time.Second
)

// watcher keeps an engine's state equal to a directory of manifests.
type watcher struct {
	*program
	log     *slog.Logger
	dir     string
	files   *dirFollower
	hangup  chan os.Signal // all files are to be read again
	set     *manifest.Set
	copies  *copies
	broken  map[string]string        // files that are broken, and why
	bad     atomic.Pointer[[]string] // the result of problems
	failed  string                   // why no state is applied, see hold
	unkept  map[string][]byte        // whole versions of files that are not applied yet
	applied chan struct{}            // gets a token after each apply
	keeper  metrics.Flows            // nil with -keep-flows

	give   func(servicemodel.State) // takes states on their way to the engine
	silent func() []silence.Change  // the endpoints that are taken out

	unmatched map[string]bool // warnings that were printed, see warnUnmatched
	waits     bool            // for services
	begun     bool            // the engine has a state
}

func watchFlags(o *options, fs *flag.FlagSet) {
	fs.BoolVar(&o.strict, "strict", false, "change nothing while a service is invalid or refused "+
		"(default: it stays as it was, and everything else is applied)")
	fs.StringVar(&o.copies, "copies", "",
		"`DIR` for the last whole version of each manifest, in case that one is broken when the "+
			"program starts again (default: one in $RUNTIME_DIRECTORY or /run/kernlb)")
	fs.BoolVar(&o.ejects, "eject-silent", false, "take out endpoints that do not answer the TCP "+
		"connections of at least two clients, while another endpoint answers, and at most "+
		"half of them, until they answer again, or on trial after 30 s to 30 min; without it, "+
		"this applies only to services with the annotation silent-endpoints: eject")
	fs.Func("listen", "serve a page that shows services, traces packets and tells what was done, "+
		"and /healthz and /livez beside it, at `IP:PORT`, such as 127.0.0.1:10256, or unix:PATH "+
		"of a socket, which answers also while conntrack is full (default: none)",
		func(s string) (err error) {
			if path, isSocket := strings.CutPrefix(s, "unix:"); isSocket && path != "" {
				o.socket = path
			} else if o.listen, err = netip.ParseAddrPort(s); err != nil {
				err = errors.New("want IP:PORT, or unix:PATH")
			}
			return err
		})
	fs.BoolVar(&o.anywhere, "listen-anywhere", false, "let -listen be an address that other hosts "+
		"can reach; the page has no authentication")
}

func checkWatch(o *options) error {
	if o.listen.IsValid() && !o.listen.Addr().IsLoopback() && !o.anywhere {
		return fmt.Errorf("-listen: %s: reachable from other hosts, and the page has no "+
			"authentication; pass -listen-anywhere to allow it", o.listen)
	}

	return checkInput(o)
}

// watch keeps the kernel equal to a directory of manifests until it is interrupted. Then the
// kernel stays as it is.
func (p *program) watch(ctx context.Context) error {
	w, err := p.newWatcher()
	if err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	signal.Notify(w.hangup, syscall.SIGHUP)
	defer signal.Stop(w.hangup)
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
	keeper, done, err := p.keepFlows(cfg)
	if err != nil {
		return err
	}
	defer done()
	if keeper != nil {
		w.keeper = keeper
	}
	return p.withEngine(ctx, w.set.Tracker().State(), cfg, func(e *dataplane.Engine) error {
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
	log := slog.New(slog.NewTextHandler(p.stderr, nil))
	if p.opts.output == "json" {
		log = slog.New(slog.NewJSONHandler(p.stderr, nil))
	}
	set := manifest.NewSet(&kube.Config{Node: p.opts.node, Annotations: p.opts.annotations,
		Strict: true})
	set.AllowEmpty = p.opts.empty
	return &watcher{program: p, log: log, dir: dir, files: files, hangup: make(chan os.Signal, 1),
		broken: map[string]string{}, unkept: map[string][]byte{}, applied: make(chan struct{}, 1),
		set: set, copies: newCopies(p.opts.copies, p.opts.instance, dir, log)}, nil
}

// run applies states, and reads changed files, until ctx is done.
func (w *watcher) run(ctx context.Context, e *dataplane.Engine) error {
	defer e.Subscribe(w.tellManager)()
	follower, err := feedback.New(e, w.opts.ejects, filepath.Join(w.copies.dir, "silent"), w.log)
	if err != nil {
		return err
	}
	defer follower.Close() //nolint:errcheck // it only reads
	w.give, w.silent = follower.Set, follower.Silent
	closePage, err := w.listen(ctx, e)
	if err != nil {
		return err
	}
	defer closePage()
	if err = w.send(ctx, e); err == nil {
		ctx, stop := context.WithCancel(ctx)
		ended := make(chan error, 2)
		go func() { ended <- e.Run(ctx, nil) }()
		go func() { ended <- feedback.Run(ctx, follower, w.log) }()
		err = w.follow(ctx, e)
		stop()
		err = cmp.Or(err, <-ended, <-ended)
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
	var alive <-chan time.Time // ready whenever the service manager wants a sign of life
	if every, err := daemon.SdWatchdogEnabled(false); err == nil && every > 0 {
		t := time.NewTicker(every / 2)
		defer t.Stop()
		alive = t.C
	}

	defer notify(daemon.SdNotifyStopping)
	found := changes{}
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
		case <-w.hangup:
			w.log.Info("reads the manifests again, as SIGHUP asks", "directory", w.dir)
			found[everything] = true
			read.Reset(0)
		case c, ok := <-w.files.changes:
			if !ok {
				w.log.Error("the directory is gone; services stay as they are", "directory", w.dir)
				w.files.close()
				w.note()
				continue
			}

			if len(found) == 0 {
				latest = time.Now().Add(patience)
			}
			maps.Copy(found, c)
			read.Reset(min(quiet, time.Until(latest)))
		case <-w.applied:
			w.keepCopies(e)
		case <-reopen.C:
			if w.files.changes != nil && w.files.replaced(w.dir) {
				w.log.Info("another directory is there", "directory", w.dir)
				w.files.close()
			}

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
	if !c[everything] {
		for _, name := range slices.Sorted(maps.Keys(c)) {
			w.readFile(name)
		}
	} else if err := w.readAll(); err != nil {
		w.log.Error("read directory", "error", err)
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
		return nil, notRegular(path)
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

	w.broken[name] = fmt.Sprintf("%s: %s\n%v", name, text, err)
	for line := range strings.SplitSeq(err.Error(), "\n") {
		w.log.Error(text, "file", name, "error", line)
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
// no manifest has stay. A state without services is applied only with -allow-empty, because a
// directory that is not mounted yet looks the same.
func (w *watcher) send(ctx context.Context, e *dataplane.Engine) error {
	defer w.note()
	w.failed = ""
	s := w.set.Tracker().State()
	w.warnUnmatched()
	waited := w.waits
	if w.waits = s.Len() == 0 && !w.opts.empty; w.waits {
		w.failed = "no manifest has a service: the kernel stays as it is"
		if !waited {
			w.log.Warn("the directory has no service: the kernel stays as it is; with "+
				"-allow-empty, all is removed", "directory", w.dir)
			notify(daemon.SdNotifyReady + "\nSTATUS=waits for services")
		}

		return nil
	}

	for _, name := range slices.Sorted(maps.Keys(w.broken)) {
		if w.begun || w.knows(name) {
			continue
		}
		o, err := e.Observe(ctx)
		if err != nil {
			return err
		}
		held := slices.DeleteFunc(servicesOf(o.Table), func(n servicemodel.Name) bool {
			return s.Service(n) != nil
		})
		if len(held) > 0 {
			w.failed = "the kernel stays as it is until " + name + " is whole or removed: " +
				"services that no other manifest has may be its own"
			w.log.Error("the kernel stays as it is until the manifest is whole or removed: "+
				"services that no other manifest has may be its own", "file", name, "services",
				held)
			notify(daemon.SdNotifyReady + "\nSTATUS=waits for " + name + ", which is broken")
			return nil
		}
	}

	if !w.begun && !w.opts.strict {
		if hold, err := w.recall(ctx, e, s); err != nil || hold {
			return err
		}
	}

	if !w.begun {
		w.copies.keep(func(name string) bool { return w.knows(name) || w.broken[name] != "" })
	}
	w.begun = true
	w.give(s)
	return nil
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
			text += fmt.Sprintf("; %s: kernlb status", count(n, "problem"))
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

// changes are the names of the files of a directory that changed. The name everything stands for
// all files.
type changes map[string]bool

const everything = ""

// warnUnmatched prints, once, which objects of the manifests belong to no service.
func (w *watcher) warnUnmatched() {
	now := map[string]bool{}
	for _, p := range w.set.Unmatched() {
		text := p.Error()
		now[text] = true
		if !w.unmatched[text] {
			w.log.Warn(text)
		}
	}

	w.unmatched = now
}
