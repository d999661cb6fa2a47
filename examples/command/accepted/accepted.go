// Package accepted keeps the definitions of services that an engine accepted. So the next process
// of a program serves a refused service as it was ([dataplane.Config.Accepted]).
package accepted

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// pace is the interval between writes. If a process is killed, the definitions that were accepted
// since its last write are lost, and the next process has the earlier definitions.
const pace = time.Minute

// File has the accepted services of a program.
type File struct {
	path    string
	log     *slog.Logger
	newest  atomic.Pointer[servicemodel.State]
	written []byte
}

// Path returns the path of a file or directory that disappears at a reboot, like the kernel's
// contents. It is in the first runtime directory that systemd made for the program
// (systemd.exec(5)), or else in /run/kernlb.
func Path(name string) string {
	first, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
	return filepath.Join(cmp.Or(first, "/run/kernlb"), name)
}

// Replace writes a file as a whole, and makes its directory if need be.
func Replace(path string, data []byte) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return err
}

// Open returns the file of a program, at a [Path].
func Open(program string, log *slog.Logger) *File {
	return &File{path: Path(program + "-services.json"), log: log}
}

// Load returns a state with the services that an earlier process had accepted, without endpoints.
func (f *File) Load() (s servicemodel.State) {
	data, err := os.ReadFile(f.path)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.log.Warn("the services that were accepted before are not known", "error", err)
	}
	return s
}

// Observe is an observer of the engine.
func (f *File) Observe(_ context.Context, ev dataplane.Event) {
	if ev, ok := ev.(dataplane.Applied); ok {
		f.newest.Store(&ev.Accepted)
	}
}

// Run writes the file now and then, and when the context ends.
func (f *File) Run(ctx context.Context) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			done = true
		}

		if err := f.write(); err != nil {
			f.log.Warn("accepted services are not kept: after a restart, one that is refused by "+
				"then is left out", "error", err)
		}
	}

	return nil
}

// write writes the newest definitions if they differ from the file's. If that fails, they are
// written the next time.
func (f *File) write() error {
	s := f.newest.Swap(nil)
	if s == nil {
		return nil
	}
	var services servicemodel.State
	for svc := range s.Services() {
		services = services.WithService(svc)
	}
	data, err := json.Marshal(services)
	if err != nil || bytes.Equal(data, f.written) {
		return err
	}
	if err = Replace(f.path, data); err != nil {
		f.newest.CompareAndSwap(nil, s) // unless newer ones came
		return err
	}

	f.written = data
	return nil
}
