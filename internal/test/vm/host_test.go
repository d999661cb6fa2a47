package vmtest

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/vm/guest"
)

// play passes messages to a session, as if a guest had sent them.
func play(t *testing.T, s *session, messages ...guest.Message) error {
	t.Helper()
	var stream bytes.Buffer
	for out := gob.NewEncoder(&stream); len(messages) > 0; messages = messages[1:] {
		require.NoError(t, out.Encode(messages[0]))
	}
	s.onReady, s.onDone = func() {}, func() {}
	return s.follow(&stream)
}

func TestSessionGathersAResult(t *testing.T) {
	t.Parallel()
	var output bytes.Buffer
	s := &session{names: []string{"a", "b"}, output: &output, started: time.Now()}
	require.NoError(t, play(t, s,
		guest.Message{Ready: "6.1.0-test"},
		guest.Message{Output: []byte("--- PASS: TestOne (0.00s)\n    --- SK")},
		guest.Message{Output: []byte("IP: TestOne/sub (0.00s)\nPASS\n")},
		guest.Message{Exit: &guest.Exit{Duration: 1500 * time.Millisecond}},
		guest.Message{Output: []byte("--- FAIL: TestTwo (0.00s)")},
		guest.Message{Exit: &guest.Exit{Code: 1}},
		guest.Message{Done: true}))
	require.True(t, s.done)
	require.Equal(t, []ProgramResult{
		{Name: "a", ExitCode: 0, Duration: 1500 * time.Millisecond,
			Tests: TestCount{Passed: []string{"TestOne"}, Skipped: []string{"TestOne/sub"}}},
		{Name: "b", ExitCode: 1, Tests: TestCount{Failed: []string{"TestTwo"}}},
	}, s.programs)
	require.Equal(t,
		"--- PASS: TestOne (0.00s)\n    --- SKIP: TestOne/sub (0.00s)\nPASS\n--- FAIL: TestTwo "+
			"(0.00s)", output.String())
}

func TestSessionEndsWithAnError(t *testing.T) {
	t.Parallel()
	s := &session{names: []string{"a"}, output: &bytes.Buffer{}}
	require.ErrorContains(t, play(t, s, guest.Message{Exit: &guest.Exit{}},
		guest.Message{Exit: &guest.Exit{}}), "more programs of the guest ended")
	require.ErrorContains(t, play(t, s, guest.Message{Fatal: "no /proc"}), "init says: no /proc")
	require.ErrorContains(t, s.follow(strings.NewReader("noise that is no message")), "damaged")
	require.NoError(t, play(t, s), "the guest said nothing")
}

func TestOnlyWhatTheEmulationDoesIsTriedAgain(t *testing.T) {
	t.Parallel()
	panicked := fmt.Errorf("%w: somewhere", ErrPanic)
	for name, c := range map[string]struct {
		result Result
		err    error
		again  bool
	}{
		"the kernel hung before init": {Result{},
			fmt.Errorf("run the VM: %w", errBootTimeout), true},
		"it panicked before init": {Result{KernelLog: "Oops: general protection fault"},
			panicked, true},
		"it panicked later": {
			Result{Boot: time.Second, KernelLog: "Oops: general protection fault"}, panicked,
			false},
		"it ran into code that it patches": {
			Result{Boot: time.Second, KernelLog: "[ 2.1] Oops: int3: 0000 [#1] SMP"},
			panicked, true},
		"the programs took too long": {Result{Boot: time.Second},
			fmt.Errorf("%w: not done", ErrTimeout), false},
		"a program failed, after a warning": {
			Result{Boot: time.Second, KernelLog: "Oops: int3: 0000"}, ErrTestsFailed, false},
		"all went well": {Result{Boot: time.Second}, nil, false},
	} {
		require.Equal(t, c.again, inconclusive(&c.result, c.err), name)
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	panicked := &console{onPanic: func() {}}
	_, _ = panicked.Write([]byte("fine\r\nKernel panic - not syn"))
	_, _ = panicked.Write([]byte("cing: sysrq\r\nCall Trace:\r\n"))
	quiet := &console{}
	finished := func(codes ...int) *session {
		s := &session{done: true}
		for _, c := range codes {
			s.names = append(s.names, "p")
			s.programs = append(s.programs, ProgramResult{Name: "p", ExitCode: c})
		}

		return s
	}

	for name, c := range map[string]struct {
		limit, ended error
		log          *console
		session      *session
		want         error
		text         string
	}{
		"all programs ended with 0": {nil, nil, quiet, finished(0, 0), nil, ""},
		"a program failed": {nil, nil, quiet, finished(0, 2), ErrTestsFailed,
			"p (exit code 2)"},
		"it stopped without a word": {nil, nil, quiet, &session{names: []string{"p"}},
			ErrNoVerdict, "after 0 of 1"},
		"it was done too early": {nil, nil, quiet, &session{names: []string{"p"}, done: true},
			ErrNoVerdict, "after 0 of 1"},
		"QEMU failed": {nil, errors.New("boom"), quiet, &session{}, ErrNoVerdict,
			"boom"},
		"QEMU is missing": {nil, fmt.Errorf("%w: qemu", ErrMissing), quiet, &session{},
			ErrMissing, "missing: qemu"},
		"a limit explains QEMU's end": {ErrTimeout, errors.New("killed"), quiet, finished(0),
			ErrTimeout, "run the VM"},
		"the caller gave up": {context.Canceled, errors.New("killed"), quiet, &session{},
			context.Canceled, "run the VM"},
		"a panic explains all": {ErrPanic, errors.New("killed"), panicked, finished(0), ErrPanic,
			"\n\tKernel panic - not syncing: sysrq\n\tCall Trace:"},
		"a panic spoils a passed verdict": {nil, nil, panicked, finished(0), ErrPanic, "sysrq"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := judge(c.limit, c.ended, c.log, c.session)
			require.ErrorIs(t, err, c.want)
			if c.text != "" {
				require.ErrorContains(t, err, c.text)
			}
		})
	}
}

func TestConsoleKeepsTheEnd(t *testing.T) {
	t.Parallel()
	panics := 0
	c := &console{onPanic: func() { panics++ }}
	for range maxKernelLog / 4 {
		_, err := c.Write([]byte("0123456789\r\n"))
		require.NoError(t, err)
	}

	require.False(t, c.sawPanic())
	for range 2 {
		_, err := c.Write([]byte(panicText + "\r\n"))
		require.NoError(t, err)
	}

	require.Equal(t, 1, panics)
	require.Len(t, c.text(), maxKernelLog)
	require.True(t, strings.HasSuffix(c.text(), "9\n"+panicText+"\n"+panicText+"\n"))
	require.NotContains(t, c.text(), "\r")
}

func FuzzTestLog(f *testing.F) {
	f.Add("--- PASS: TestA (0.00s)\n    --- FAIL: TestA/b (1.00s)\n--- SKIP: TestC (0.00s)\n", 7)
	f.Add("--- FAIL: "+strings.Repeat("x", maxTestLine)+" (0.00s)\n", 1)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		var whole, parts testLog
		_, _ = whole.Write([]byte(text))
		cut = max(0, min(cut, len(text)))
		_, _ = parts.Write([]byte(text[:cut]))
		_, _ = parts.Write([]byte(text[cut:]))
		whole.end()
		parts.end()
		require.Equal(t, whole.count, parts.count,
			"the way output is cut must not change the count")
		n := len(whole.count.Passed) + len(whole.count.Failed) + len(whole.count.Skipped)
		require.LessOrEqual(t, n, strings.Count(text, "--- "))
	})
}
