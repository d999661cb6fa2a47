package vmtest

import (
	"fmt"
	"io"
	"time"

	"github.com/kernlb/kernlb/internal/test/vm/guest"
)

// session turns the guest's messages into a [Result].
type session struct {
	names  []string // of the programs, in order
	output io.Writer

	started time.Time
	onReady func()
	onDone  func()

	boot     time.Duration
	log      testLog
	programs []ProgramResult
	done     bool
}

// follow handles messages up to the end of the stream.
func (s *session) follow(r io.Reader) error {
	in := guest.NewReader(r)
	for {
		m, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = s.handle(m)
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) handle(m guest.Message) error {
	if m.Fatal != "" {
		return fmt.Errorf("the guest's init says: %s", m.Fatal)
	}
	switch {
	case m.Ready != "":
		s.boot = time.Since(s.started)
		s.onReady()
	case m.Exit != nil:
		return s.exit(*m.Exit)
	case m.Done:
		s.done = true
		s.onDone()
	default:
		_, _ = s.log.Write(m.Output)
		if _, err := s.output.Write(m.Output); err != nil {
			return fmt.Errorf("pass on the guest's output: %w", err)
		}
	}
	return nil
}

func (s *session) exit(e guest.Exit) error {
	if len(s.programs) == len(s.names) {
		return fmt.Errorf("%w: more programs ended than there are", guest.ErrStream)
	}
	s.log.end()
	s.programs = append(s.programs, ProgramResult{
		Name:     s.names[len(s.programs)],
		ExitCode: e.Code,
		Duration: e.Duration,
		Tests:    s.log.count,
	})
	s.log = testLog{}
	return nil
}
