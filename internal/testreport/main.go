// Testreport reads what "go test -json" prints, shows what failed, counts the tests that were skipped by their reason, and fails if a part
// of the suite that must run did not.
//
//	go test -json ./... | go run ./internal/testreport -require 'netns=nftables internal/netnstest' -require 'vm=ipvs'
//
// A part ran if each of its packages (below the module's path) has a passed test and none was skipped for want of privileges or of a virtual machine.
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

// event is one line of go test -json (go doc test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

// report is what was seen.
type report struct {
	passed, failed, skipped int
	reasons                 map[string]int
	output                  map[string][]string // of tests not finished yet, by package and test
	passes, skips           map[string]int      // by package
}

func main() {
	var required requirements
	flag.Var(&required, "require", "`PART=PACKAGE ...` that must have run; may be repeated")
	flag.Parse()
	r := &report{reasons: map[string]int{}, output: map[string][]string{}, passes: map[string]int{}, skips: map[string]int{}}
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

// requirements are parts of the suite and their packages.
type requirements []requirement

type requirement struct {
	part     string
	packages []string
}

func (r *requirements) String() string { return "" }

func (r *requirements) Set(s string) error {
	part, packages, ok := strings.Cut(s, "=")
	if !ok {
		return fmt.Errorf("want PART=PACKAGE ..., got %q", s)
	}
	*r = append(*r, requirement{part, strings.Fields(packages)})
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
	switch e.Action {
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
		r.passes[e.Package]++
	case "fail":
		r.failed++
		fmt.Fprintf(out, "FAIL %s %s (%.2fs)\n%s", e.Package, e.Test, e.Elapsed, strings.Join(lines, ""))
	case "skip":
		r.skipped++
		r.skips[e.Package]++
		r.reasons[reason(lines)]++
	}
}

func (r *report) packageDone(out io.Writer, e event, lines []string) {
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
	fmt.Fprintf(out, "%-4s %s %v\n", e.Action, e.Package, took)
	if e.Action == "fail" {
		if r.failed == 0 {
			r.failed++ // it did not build, or died outside of a test
		}
		fmt.Fprint(out, strings.Join(lines, ""))
	}
}

// reason is what a skipped test said: its last line that is not the test runner's.
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

// missing lists what must have run and did not.
func (r *report) missing(required requirements) []string {
	var l []string
	for _, q := range required {
		for _, p := range q.packages {
			full := "github.com/kernlb/kernlb/" + p
			if r.passes[full] == 0 {
				l = append(l, fmt.Sprintf("%s: no test of %s passed", q.part, p))
			}
			for _, why := range slices.Sorted(maps.Keys(r.reasons)) {
				if r.skips[full] > 0 && strings.Contains(why, "needs root or an unprivileged user namespace") {
					l = append(l, fmt.Sprintf("%s: %s: %s", q.part, p, why))
				}
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
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}
