package vmtest

import (
	"bytes"
	"strings"
)

// TestCount has the names of the tests and subtests in the output of a Go test binary that ran with
// -test.v, in the order of output. Without that flag, it has only failures.
type TestCount struct{ Passed, Failed, Skipped []string }

// maxTestLine is the number of bytes of a line that testLog keeps. Names of tests are shorter.
const maxTestLine = 4096

// testLog is an io.Writer that counts the tests in the written output.
type testLog struct {
	count TestCount
	line  []byte
}

// Write never fails.
func (l *testLog) Write(p []byte) (int, error) {
	rest := p
	for {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		l.line = append(l.line, line[:min(len(line), maxTestLine-len(l.line))]...)
		if !ended {
			return len(p), nil
		}
		l.end()
		rest = after
	}
}

// end parses a whole line: "--- PASS: TestName (0.00s)", indented for subtests.
func (l *testLog) end() {
	line := strings.TrimLeft(string(l.line), " ")
	l.line = l.line[:0]
	verdict, ok := strings.CutPrefix(line, "--- ")
	if !ok {
		return
	}
	verdict, rest, ok := strings.Cut(verdict, ": ")
	name, _, ok2 := strings.Cut(rest, " (")
	if !ok || !ok2 {
		return
	}
	switch verdict {
	case "PASS":
		l.count.Passed = append(l.count.Passed, name)
	case "FAIL":
		l.count.Failed = append(l.count.Failed, name)
	case "SKIP":
		l.count.Skipped = append(l.count.Skipped, name)
	}
}
