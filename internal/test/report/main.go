// Command report runs tests in one of the ways of the Makefile (runs.go). It shows failures, counts
// skipped tests by their reason, and fails if a part of the suite that must run (parts.go) did not.
// During the run it shows the progress: a line for each finished package, and a line after half a
// minute without output.
//
//	report RUN [ARGUMENT OF GO TEST...]
//
// It also compares the skipped tests with the list of tests that may be skipped. If the variable
// KERNLB_TEST_SKIPS is "listed", as in continuous integration, a skipped test without an entry
// makes it fail, and so does an entry without a test.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

// module is the beginning of the paths of packages.
const module = "github.com/kernlb/kernlb/"

// event is one line of go test -json (go doc test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

// skip is a test that was skipped.
type skip struct{ test, reason string }

// report summarizes the events.
type report struct {
	passed, failed int
	output         map[string][]string // of tests not finished yet, by package and test
	passes         map[string]bool     // by PACKAGE.TEST
	fails          []string            // PACKAGE.TEST
	skips          []skip

	packages int // there are, 0 if that is not known
	done     int // packages
	running  map[string]bool
	start    time.Time
	told     time.Time // when the last line was written
}

// silence is the longest time without a line while tests run.
const silence = 30 * time.Second

func main() {
	names := slices.Sorted(maps.Keys(runs))
	if len(os.Args) < 2 || !slices.Contains(names, os.Args[1]) {
		fmt.Fprintf(os.Stderr, "usage: report RUN [ARGUMENT OF GO TEST...]\nRUN is one of %s\n",
			strings.Join(names, ", "))
		os.Exit(2)
	}

	good, err := execute(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
	}
	if !good || err != nil {
		os.Exit(1)
	}
}

// execute executes a run, and reports whether the tests and the lists are as required.
func execute(name string, args []string) (good bool, err error) {
	r, run := newReport(), runs[name]

	for _, c := range run.tests {
		n, err := run.packages(c)
		if err != nil {
			return false, err
		}
		r.packages += n
	}

	for _, c := range run.tests {
		if err := r.test(run.test(c, args)); err != nil {
			return false, err
		}
	}

	missing, unlisted := r.missing(run.parts), r.unlisted(name, skips)
	r.print(os.Stdout, missing, unlisted)
	listed := len(unlisted) == 0 || os.Getenv("KERNLB_TEST_SKIPS") != "listed"
	return r.failed == 0 && len(missing) == 0 && r.passed > 0 && listed, nil
}

// test runs go test, and reads its output. A failure of go test is no error if the output names the
// failed test.
func (r *report) test(c *exec.Cmd) error {
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	before := r.failed
	if err := r.read(out, os.Stdout); err != nil {
		return err
	}
	if err := c.Wait(); err != nil && r.failed == before {
		return fmt.Errorf("%s: %w", strings.Join(c.Args, " "), err)
	}
	return nil
}

func newReport() *report {
	return &report{output: map[string][]string{}, passes: map[string]bool{},
		running: map[string]bool{}, start: time.Now(), told: time.Now()}
}

func (r *report) read(in io.Reader, out io.Writer) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			fmt.Fprintln(out, sc.Text())
			continue
		}

		r.event(out, e)
	}

	return sc.Err()
}

func (r *report) event(out io.Writer, e event) {
	key := e.Package + " " + e.Test
	if time.Since(r.told) > silence && len(r.running) > 0 {
		r.tell(out, fmt.Sprintf("running %s, %d tests passed", strings.Join(slices.Sorted(
			maps.Keys(r.running)), " "), r.passed))
	}

	switch e.Action {
	case "start":
		r.running[strings.TrimPrefix(e.Package, module)] = true
		return
	case "build-output": // it names no package
		fmt.Fprint(out, e.Output)
		return
	case "output":
		r.output[key] = append(r.output[key], e.Output)
		return
	case "pass", "fail", "skip":
	default:
		return
	}

	lines := r.output[key]
	delete(r.output, key)
	if e.Test == "" {
		r.packageDone(out, e, lines)
		return
	}

	test := strings.TrimPrefix(e.Package, module) + "." + e.Test
	switch e.Action {
	case "pass":
		r.passed++
		r.passes[test] = true
	case "fail":
		r.failed++
		r.fails = append(r.fails, test)
		fmt.Fprintf(out, "FAIL %s %s (%.2fs)\n%s", e.Package, e.Test, e.Elapsed,
			strings.Join(lines, ""))
	case "skip":
		r.skips = append(r.skips, skip{test, reason(lines)})
	}
}

func (r *report) packageDone(out io.Writer, e event, lines []string) {
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
	name := strings.TrimPrefix(e.Package, module)
	delete(r.running, name)
	r.done++
	if e.Action != "skip" { // it has no tests
		r.tell(out, fmt.Sprintf("%s %s %v", e.Action, name, took))
	}
	if e.Action == "fail" {
		if r.failed == 0 {
			r.failed++ // it did not build, or died outside of a test
		}

		// The output of unfinished tests shows the reason if the process died or took too long.
		for _, key := range slices.Sorted(maps.Keys(r.output)) {
			if test, found := strings.CutPrefix(key, e.Package+" "); found {
				fmt.Fprintf(out, "UNFINISHED %s %s\n%s", e.Package, test,
					strings.Join(r.output[key], ""))
				delete(r.output, key)
			}
		}

		fmt.Fprint(out, strings.Join(lines, ""))
	}
}

// tell writes a line with the time since the start, and the number of finished packages.
func (r *report) tell(out io.Writer, text string) {
	r.told = time.Now()
	clock := r.told.Sub(r.start).Round(time.Second)
	fmt.Fprintf(out, "%2d:%02d  %d/%d  %s\n", int(clock.Minutes()), int(clock.Seconds())%60, r.done,
		r.packages, text)
}

// reason returns the reason of a skipped test: the last line of its output that is not from the
// test runner.
func reason(lines []string) string {
	for _, l := range slices.Backward(lines) {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "---") || strings.HasPrefix(l, "===") {
			continue
		}
		if _, after, ok := strings.Cut(l, ".go:"); ok { // file.go:12: text
			_, l, _ = strings.Cut(after, ": ")
		}
		return l
	}

	return "no reason given"
}

// missing lists the tests of parts that did not run.
func (r *report) missing(names []string) (l []string) {
	for _, part := range names {
		for _, test := range parts[part] {
			known := false
			for _, sk := range r.skips {
				if sk.test == test || strings.HasPrefix(sk.test, test+"/") {
					known = true
					l = append(l, fmt.Sprintf("%s: %s skipped: %s", part, sk.test, sk.reason))
				}
			}

			if !known && !r.passes[test] {
				l = append(l, fmt.Sprintf("%s: %s did not pass", part, test))
			}
		}
	}

	return l
}

// unlisted returns the skipped tests of a run that no entry of the list allows, and the outdated
// entries.
func (r *report) unlisted(run string, list []allowed) (l []string) {
	ran := append(slices.Collect(maps.Keys(r.passes)), r.fails...)
	found := make([]bool, len(r.skips))
	for _, a := range list {
		if !slices.Contains(strings.Fields(a.runs), run) {
			continue
		}
		tests, reason := regexp.MustCompile("^("+a.tests+")$"), regexp.MustCompile(a.reason)
		exists, skipped := slices.ContainsFunc(ran, tests.MatchString), false
		for i, sk := range r.skips {
			if tests.MatchString(sk.test) {
				exists = true
				if reason.MatchString(sk.reason) {
					skipped, found[i] = true, true
				}
			}
		}

		if !exists {
			l = append(l, a.tests+" may be skipped, and is no test")
		} else if !skipped && a.unless == "" {
			l = append(l, a.tests+" may be skipped ("+a.reason+"), and is not")
		}
	}

	for i, sk := range r.skips {
		if !found[i] {
			l = append(l, sk.test+" may not be skipped: "+sk.reason)
		}
	}

	return l
}

func (r *report) print(out io.Writer, missing, unlisted []string) {
	reasons := map[string]int{}
	for _, sk := range r.skips {
		reasons[sk.reason]++
	}
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(out, "skipped %4d: %s\n", reasons[why], why)
	}
	for _, m := range missing {
		fmt.Fprintf(out, "NOT RUN %s\n", m)
	}
	for _, u := range unlisted {
		fmt.Fprintf(out, "NOT LISTED %s\n", u)
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped, in %v\n", r.passed, r.failed,
		len(r.skips), time.Since(r.start).Round(time.Second))
}
