package vmtest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kernlb/kernlb/internal/vmtest/guest"
)

// session turns the guest's frames into a [Result].
type session struct {
	names      []string // of the programs, in order
	output     io.Writer
	resultsDir string // "" to drop result files

	started time.Time
	onReady func()
	onDone  func()

	kernel   string // release that the guest says it has
	boot     time.Duration
	log      testLog
	programs []ProgramResult
	files    []string
	done     bool
}

// follow handles frames up to the end of the stream.
func (s *session) follow(r io.Reader) error {
	in := guest.NewReader(r)
	for {
		kind, payload, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = s.handle(kind, payload)
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) handle(kind guest.Kind, payload []byte) error {
	if first := s.kernel == ""; first != (kind == guest.Ready) && kind != guest.Fatal || s.done {
		return fmt.Errorf("%w: frame %c out of order", guest.ErrFrame, kind)
	}
	switch kind {
	case guest.Ready:
		s.kernel, s.boot = string(payload), time.Since(s.started)
		s.onReady()
	case guest.Output:
		_, _ = s.log.Write(payload)
		if _, err := s.output.Write(payload); err != nil {
			return fmt.Errorf("pass on the guest's output: %w", err)
		}
	case guest.Exit:
		return s.exit(payload)
	case guest.File:
		return s.file(payload)
	case guest.Done:
		if len(s.programs) != len(s.names) {
			return fmt.Errorf("%w: done after %d of %d programs", guest.ErrFrame, len(s.programs),
				len(s.names))
		}
		s.done = true
		s.onDone()
	case guest.Fatal:
		return fmt.Errorf("the guest's init says: %s", payload)
	}
	return nil
}

func (s *session) exit(payload []byte) error {
	status, err := guest.ParseExit(payload)
	if err != nil {
		return err
	}
	if len(s.programs) == len(s.names) {
		return fmt.Errorf("%w: more exit codes than programs", guest.ErrFrame)
	}
	s.log.end()
	s.programs = append(s.programs, ProgramResult{
		Name:     s.names[len(s.programs)],
		ExitCode: status.Code,
		Duration: time.Duration(status.Milliseconds) * time.Millisecond,
		Tests:    s.log.count,
	})
	s.log = testLog{}
	return nil
}

// file appends to a result file. The first piece truncates it.
func (s *session) file(payload []byte) error {
	name, data, err := guest.SplitFile(payload)
	if err != nil {
		return err
	}
	if !filepath.IsLocal(name) || name != filepath.Base(name) || name == "." {
		return fmt.Errorf("%w: a result file called %q", guest.ErrFrame, name)
	}
	if s.resultsDir == "" {
		return nil
	}
	path := filepath.Join(s.resultsDir, name)
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if len(s.files) == 0 || s.files[len(s.files)-1] != path {
		s.files = append(s.files, path)
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return fmt.Errorf("keep a result file: %w", err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("keep a result file: %w", err)
	}
	return nil
}
