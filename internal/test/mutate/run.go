//go:build unix

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// selected is the source of kernlbMutant in a package. Without a mutant, each process writes the
// numbers of the mutants that it reaches.
const selected = `package %s

import (
	"os"
	"strconv"
	"sync/atomic"
)

var kernlbMutantNow, _ = strconv.Atoi(os.Getenv("KERNLB_MUTANT"))

var kernlbReached, _ = os.OpenFile(os.Getenv("KERNLB_REACHED"), os.O_APPEND|os.O_WRONLY, 0)

var kernlbSeen [%d]atomic.Bool

func kernlbMutant(n int) bool {
	if kernlbMutantNow == 0 && !kernlbSeen[n].Swap(true) {
		_, _ = kernlbReached.WriteString(strconv.Itoa(n) + "\n")
	}
	return n == kernlbMutantNow
}
`

// schema returns a file with all mutants that change it.
func (u *unit) schema(file string, mutants []*mutant) (out []byte) {
	at, source := 0, u.source[file]
	for _, m := range slices.SortedFunc(slices.Values(mutants), func(a, b *mutant) int {
		return cmp.Compare(a.from, b.from)
	}) {
		if m.file == file {
			out = append(out, source[at:m.from]...)
			out = fmt.Appendf(out, m.wrap, m.number, source[m.from:m.to], m.text)
			at = m.to
		}
	}

	return append(out, source[at:]...)
}

// suites compiles tests with all drawn mutants of all packages.
type suites struct {
	tmp string
	env []string
	of  map[string][]*test // by directory
}

// newSuites writes the mutated sources.
func newSuites(units []*unit, drawn [][]*mutant) (*suites, error) {
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return nil, err
	}
	overlay, n := map[string]string{}, 1+len(slices.Concat(drawn...))
	write := func(file string, content []byte) {
		overlay[file] = filepath.Join(tmp, strconv.Itoa(len(overlay))+".go")
		err = cmp.Or(err, os.WriteFile(overlay[file], content, 0o600))
	}

	for i, u := range units {
		name := ""
		for file, f := range u.files {
			name = f.Name.Name
			write(file, u.schema(file, drawn[i]))
		}

		write(filepath.Join(u.dir, "kernlb_mutant.go"), fmt.Appendf(nil, selected, name, n))
	}

	list, _ := json.Marshal(map[string]any{"Replace": overlay})
	replaced := filepath.Join(tmp, "overlay.json")
	err = cmp.Or(err, os.WriteFile(replaced, list, 0o600))

	// Programs that the tests compile have the mutants, too.
	return &suites{tmp: tmp, of: map[string][]*test{}, env: append(os.Environ(),
		"GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+replaced)}, err
}

// test is one or more top-level tests of a package, which run in a process of their own.
type test struct {
	dir, program, names string
	env                 []string
	took                time.Duration // without a mutant; 0 before it has run
	longer              time.Duration // it did not end in this time
	reached             map[int]bool  // mutants
}

// Time limits of a test without a mutant: the limit of the first round, and the maximum. The limit
// of each further round is eight times higher.
const (
	first = 2 * time.Second
	most  = time.Hour
)

// in compiles the tests in a directory.
func (s *suites) in(dir string) ([]*test, error) {
	if tests, ok := s.of[dir]; ok {
		return tests, nil
	}
	program := filepath.Join(s.tmp, strconv.Itoa(len(s.of))+".test")
	_, err := command(dir, s.env, "go", "test", "-vet=off", "-c", "-o", program, ".")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(program); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the package has no tests
	}
	var tests []*test
	list, err := command(dir, s.env, program, "-test.list", "^(Test|Example|Fuzz)")
	for _, name := range strings.Fields(list) {
		tests = append(tests, &test{dir: dir, program: program, names: name, env: s.env})
	}
	s.of[dir] = tests
	return tests, err
}

// measure runs a test without a mutant, unless it has run, and reports whether it ended in time.
func (t *test) measure(tmp string, limit time.Duration) (ended bool, err error) {
	if t.took > 0 || limit <= t.longer {
		return t.took > 0, nil
	}
	reached, began := filepath.Join(tmp, "reached"), time.Now()
	if err := os.WriteFile(reached, nil, 0o600); err != nil {
		return false, err
	}
	out, err := t.run(0, limit, "KERNLB_REACHED="+reached)
	if errors.Is(err, context.DeadlineExceeded) && limit < most {
		t.longer = limit
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("%s: %s without a mutant: %w\n%s", t.dir, t.names, err, out)
	}
	numbers, err := os.ReadFile(reached)
	t.took, t.reached = time.Since(began), map[int]bool{}
	for _, number := range strings.Fields(string(numbers)) {
		n, _ := strconv.Atoi(number)
		t.reached[n] = true
	}

	return true, err
}

// reaching returns the tests that reach a mutant, merged by package.
func reaching(m *mutant, tests []*test) (out []*test) {
	together := map[string]*test{}
	for _, t := range slices.SortedStableFunc(slices.Values(tests), func(a, b *test) int {
		return cmp.Compare(a.took, b.took)
	}) {
		if !t.reached[m.number] {
			continue
		}
		if first := together[t.dir]; first != nil {
			first.names += "|" + t.names
			first.took += t.took
			continue
		}

		t := *t
		together[t.dir] = &t
		out = append(out, &t)
	}

	return out
}

// try reports, for each mutant, the test in the directories that kills it, if any. Later rounds are
// for mutants that survived the faster tests of earlier rounds.
func (s *suites) try(mutants []*mutant, dirs []string, report func(*mutant, string)) error {
	var tests []*test
	for _, dir := range dirs {
		more, err := s.in(dir)
		if err != nil {
			return err
		}
		tests = append(tests, more...)
	}

	for limit := first; len(tests) > 0 && len(mutants) > 0; limit *= 8 {
		var ended, later []*test
		for _, t := range tests {
			if inTime, err := t.measure(s.tmp, limit); err != nil {
				return err
			} else if inTime {
				ended = append(ended, t)
			} else {
				later = append(later, t)
			}
		}

		tests, mutants = later, slices.DeleteFunc(slices.Clone(mutants), func(m *mutant) bool {
			killer := m.killer(ended)
			if killer != "" {
				report(m, killer)
			}
			return killer != ""
		})
	}

	for _, m := range mutants {
		report(m, "")
	}
	return nil
}

// killer returns the first of the tests that fails, or does not end, with the mutant.
func (m *mutant) killer(tests []*test) string {
	for _, t := range reaching(m, tests) {
		m.reached = true
		if out, err := t.run(m.number, 2*t.took+time.Minute); err != nil {
			_, name, _ := strings.Cut(out, failLine)
			name, _, _ = strings.Cut(name, "\n")
			return cmp.Or(name, t.names+": "+err.Error())
		}
	}

	return ""
}

// output collects what a test process prints, and calls failed when a test has failed.
type output struct {
	all    bytes.Buffer // not embedded, because its ReadFrom does without Write
	failed func()
}

const failLine = "--- FAIL: "

func (o *output) Write(p []byte) (n int, err error) {
	n, err = o.all.Write(p)
	if bytes.Contains(o.all.Bytes()[max(0, o.all.Len()-n-len(failLine)):], []byte(failLine)) {
		o.failed()
	}
	return n, err
}

// run runs tests with a mutant until one of them fails.
func (t *test) run(mutant int, limit time.Duration, env ...string) (printed string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.program, "-test.run", "^("+t.names+")$", "-test.short",
		"-test.failfast", "-test.v", "-test.timeout=2h")
	cmd.Dir = t.dir
	cmd.Env = slices.Concat(t.env, env, []string{"KERNLB_MUTANT=" + strconv.Itoa(mutant)})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out := &output{failed: cancel}
	cmd.Stdout, cmd.Stderr, cmd.Cancel, cmd.WaitDelay = out, out, kill, time.Second
	if err = cmd.Run(); errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if cmd.Process != nil {
		_ = kill() // what the test started and left
	}
	return out.all.String(), cmp.Or(ctx.Err(), err)
}

// command runs a program, and returns its output.
func command(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var failure bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = dir, env, &failure
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s in %s: %w\n%s", name, strings.Join(args, " "), dir, err, &failure)
	}
	return string(out), err
}
