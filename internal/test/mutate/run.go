//go:build unix

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// selected is the source of kernlbMutant in a package.
const selected = `package %s

import (
	"os"
	"strconv"
)

var kernlbMutantNow, _ = strconv.Atoi(os.Getenv("KERNLB_MUTANT"))

func kernlbMutant(n int) bool { return n == kernlbMutantNow }
`

// schema returns a file with those of the mutants that change it.
func (u *unit) schema(file string, mutants []*mutant) (out []byte) {
	number := map[*mutant]int{}
	for i, m := range mutants {
		number[m] = i + 1
	}
	at, source := 0, u.source[file]
	for _, m := range slices.SortedFunc(slices.Values(mutants), func(a, b *mutant) int {
		return cmp.Compare(a.from, b.from)
	}) {
		if m.file == file {
			out = append(out, source[at:m.from]...)
			out = fmt.Appendf(out, m.wrap, number[m], source[m.from:m.to], m.text)
			at = m.to
		}
	}
	return append(out, source[at:]...)
}

// suite is the tests of one package, compiled with all mutants of the mutated package.
type suite struct {
	dir, program string
	env          []string
	phases       [][]string    // arguments: first the quick tests, then the others
	silence      time.Duration // the longest time without a line of output
	limit        time.Duration // of silence, after which tests hang
}

// quick is the longest time of a test of the first phase.
const quick = 200 * time.Millisecond

// compile compiles the tests in directories with all mutants, and runs them with none.
func (u *unit) compile(tmp string, mutants []*mutant, dirs []string) (suites []*suite, err error) {
	overlay, contents, name := map[string]string{}, map[string][]byte{}, ""
	for file, f := range u.files {
		contents[file], name = u.schema(file, mutants), f.Name.Name
	}
	contents[filepath.Join(u.dir, "kernlb_mutant.go")] = fmt.Appendf(nil, selected, name)
	for file, content := range contents {
		overlay[file] = filepath.Join(tmp, filepath.Base(file))
		if err := os.WriteFile(overlay[file], content, 0o600); err != nil {
			return nil, err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return nil, err
	}
	replaced := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(replaced, list, 0o600); err != nil {
		return nil, err
	}
	// Programs that the tests compile have the mutants, too.
	env := append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+replaced)
	for i, dir := range dirs {
		s := &suite{dir: dir, program: filepath.Join(tmp, strconv.Itoa(i)+".test"), env: env,
			limit: time.Hour}
		_, err := command(dir, env, "go", "test", "-vet=off", "-c", "-o", s.program, ".")
		if err != nil {
			return nil, err
		}
		out, ok := s.run(0, "-test.short")
		if !ok {
			return nil, fmt.Errorf("the tests in %s fail without a mutant:\n%s", dir, out)
		}
		s.limit = 5*s.silence + 20*time.Second
		pattern := "^(" + strings.Join(quickTests(out), "|") + ")$"
		s.phases = [][]string{{"-test.short", "-test.run", pattern},
			{"-test.short", "-test.skip", pattern}}
		suites = append(suites, s)
	}
	return suites, nil
}

func quickTests(output string) (names []string) {
	for line := range strings.Lines(output) {
		if f := strings.Fields(line); strings.HasPrefix(line, "--- PASS: ") && len(f) == 4 {
			took, err := time.ParseDuration(strings.Trim(f[3], "()"))
			if err == nil && took <= quick {
				names = append(names, f[2])
			}
		}
	}
	return names
}

// kills reports whether a test of the suite fails, or does not end, with a mutant.
func (s *suite) kills(n int) bool {
	return slices.ContainsFunc(s.phases, func(args []string) bool {
		_, ok := s.run(n, args...)
		return !ok
	})
}

// run runs tests with a mutant until the first one fails.
func (s *suite) run(mutant int, args ...string) (output string, ok bool) {
	cmd := exec.Command(s.program, append(args, "-test.v", "-test.failfast",
		"-test.timeout=1h")...)
	cmd.Dir, cmd.Env = s.dir, append(slices.Clone(s.env), "KERNLB_MUTANT="+strconv.Itoa(mutant))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		return err.Error(), false
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err.Error(), false
	}
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	timer := time.AfterFunc(s.limit, kill)
	defer timer.Stop()
	var b strings.Builder
	for in := bufio.NewReader(r); ; {
		began := time.Now()
		line, err := in.ReadString('\n')
		s.silence = max(s.silence, time.Since(began))
		timer.Reset(s.limit)
		b.WriteString(line)
		if failed := strings.HasPrefix(strings.TrimSpace(line), "--- FAIL: "); failed ||
			err != nil {
			kill() // also what the tests started and left
			return b.String(), cmd.Wait() == nil && !failed
		}
	}
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
