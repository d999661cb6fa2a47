package vmtest

import (
	"encoding/gob"
	"errors"
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

// follow handles messages until the stream ends.
func (s *session) follow(r io.Reader) error {
	for in := gob.NewDecoder(r); ; {
		var m guest.Message
		err := in.Decode(&m)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the guest's stream is damaged: %w", err)
		}
		if err := s.handle(m); err != nil {
			return err
		}
	}
}

func (s *session) handle(m guest.Message) error {
	switch {
	case m.Fatal != "":
		return fmt.Errorf("the guest's init says: %s", m.Fatal)
	case m.Ready != "":
		s.boot = time.Since(s.started)
		s.onReady()
	case m.Exit != nil && len(s.programs) == len(s.names):
		return errors.New("more programs of the guest ended than there are")
	case m.Exit != nil:
		s.log.end()
		s.programs = append(s.programs, ProgramResult{Name: s.names[len(s.programs)],
			ExitCode: m.Exit.Code, Duration: m.Exit.Duration, Tests: s.log.count})
		s.log = testLog{}
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
