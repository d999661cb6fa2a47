// Testreport reads the output of "go test -json". It shows failures, counts skipped tests by their
// reason, and fails if a required part of the suite did not run. On the way it shows the progress:
// a line for each finished package, and one after half a minute without a line.
//
//	go test -json ./... |
//		go run ./internal/test/report -require 'netns=nftables.TestConformance'
//
// A part ran if each of its tests (a package below the module's path, a dot, a test) passed, and
// nothing below them was skipped.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
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
type skip struct{ key, reason string }

// report sums up the events.
type report struct {
	passed, failed, skipped int
	reasons                 map[string]int
	output                  map[string][]string // of tests not finished yet, by package and test
	passes                  map[string]bool     // by package and test
	skips                   []skip

	packages int // there are, 0 if that is not known
	done     int // packages
	running  map[string]bool
	start    time.Time
	told     time.Time // when the last line was written
}

// silence is the longest time without a line while tests run.
const silence = 30 * time.Second

func main() {
	var required requirements
	flag.Var(&required, "require", "`PART=PACKAGE.TEST ...` that must have run; may be repeated")
	packages := flag.Int("packages", 0, "how many packages there are")
	flag.Parse()
	r := newReport()
	r.packages = *packages
	if err := r.read(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	missing := r.missing(required)
	r.print(os.Stdout, missing)
	if r.failed > 0 || len(missing) > 0 || r.passed == 0 {
		os.Exit(1)
	}
}

func newReport() *report {
	return &report{reasons: map[string]int{}, output: map[string][]string{},
		passes: map[string]bool{}, running: map[string]bool{}, start: time.Now(),
		told: time.Now()}
}

// requirements are parts of the suite and their tests.
type requirements []requirement

type requirement struct {
	part  string
	tests []test
}

type test struct{ pkg, name string }

func (r *requirements) String() string { return "" }

func (r *requirements) Set(s string) error {
	part, tests, ok := strings.Cut(s, "=")
	q := requirement{part: part}
	for _, t := range strings.Fields(tests) {
		pkg, name, found := strings.Cut(t, ".")
		ok = ok && found
		q.tests = append(q.tests, test{pkg, name})
	}
	if !ok || len(q.tests) == 0 {
		return fmt.Errorf("want PART=PACKAGE.TEST ..., got %q", s)
	}
	*r = append(*r, q)
	return nil
}

func (r *report) read(in io.Reader, out io.Writer) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			fmt.Fprintln(out, sc.Text()) // a build error, for example
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
	case "output", "build-output":
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
	switch e.Action {
	case "pass":
		r.passed++
		r.passes[key] = true
	case "fail":
		r.failed++
		fmt.Fprintf(out, "FAIL %s %s (%.2fs)\n%s", e.Package, e.Test, e.Elapsed,
			strings.Join(lines, ""))
	case "skip":
		r.skipped++
		why := reason(lines)
		r.skips = append(r.skips, skip{key, why})
		r.reasons[why]++
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
		fmt.Fprint(out, strings.Join(lines, ""))
	}
}

// tell writes a line with the time since the start, and how many packages are done.
func (r *report) tell(out io.Writer, text string) {
	r.told = time.Now()
	clock := r.told.Sub(r.start).Round(time.Second)
	fmt.Fprintf(out, "%2d:%02d  %d/%d  %s\n", int(clock.Minutes()), int(clock.Seconds())%60, r.done,
		r.packages, text)
}

// reason is the reason of a skipped test: the last line of its output that is not the test
// runner's.
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

// missing lists the required parts that did not run.
func (r *report) missing(required requirements) []string {
	var l []string
	for _, q := range required {
		for _, t := range q.tests {
			key, known := module+t.pkg+" "+t.name, false
			for _, sk := range r.skips {
				if sk.key == key || strings.HasPrefix(sk.key, key+"/") {
					l, known = append(l, fmt.Sprintf("%s: %s skipped: %s", q.part,
						strings.TrimPrefix(sk.key, module), sk.reason)), true
				}
			}
			if !known && !r.passes[key] {
				l = append(l, fmt.Sprintf("%s: %s %s did not pass", q.part, t.pkg, t.name))
			}
		}
	}
	return l
}

func (r *report) print(out io.Writer, missing []string) {
	for _, why := range slices.Sorted(maps.Keys(r.reasons)) {
		fmt.Fprintf(out, "skipped %4d: %s\n", r.reasons[why], why)
	}
	for _, m := range missing {
		fmt.Fprintf(out, "NOT RUN %s\n", m)
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped, in %v\n", r.passed, r.failed, r.skipped,
		time.Since(r.start).Round(time.Second))
}
