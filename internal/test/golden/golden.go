// Package golden compares the results of tests with files.
package golden

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
)

var update = flag.Bool("update", false, "write the golden files")

// Updating reports whether the test has the flag -update.
func Updating() bool { return *update }

// File requires that a file has this text. With the test's flag -update, it writes the file.
func File(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	if string(want) != text { // require.Equal would print both as a whole
		require.Fail(t, "another text than that of "+path, "run this test with -update if that is "+
			"meant, and git diff shows all of it; - is in the file, + is not:\n%s",
			difference(string(want), text))
	}
}

// difference returns the lines from the first to the last difference of two texts: "-" begins a
// wanted line, "+" a line of the other text. If there are many lines, it returns the first.
func difference(want, got string) string {
	const most = 30 // of each text
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	first := 0
	for ; len(w) > 0 && len(g) > 0 && w[0] == g[0]; first++ {
		w, g = w[1:], g[1:]
	}
	for len(w) > 0 && len(g) > 0 && w[len(w)-1] == g[len(g)-1] {
		w, g = w[:len(w)-1], g[:len(g)-1]
	}
	out := []string{fmt.Sprintf("@@ line %d: %d lines, and %d instead", first+1, len(w), len(g))}
	for _, line := range w[:min(len(w), most)] {
		out = append(out, "-"+line)
	}
	for _, line := range g[:min(len(g), most)] {
		out = append(out, "+"+line)
	}
	return strings.Join(out, "\n")
}

// Plan compares the text and the cost of a plan with a file.
func Plan(t *testing.T, path string, p backends.Plan) {
	t.Helper()
	s := p.Stats()
	File(t, path, fmt.Sprintf("%s# %d messages, %d bytes, %d elements\n", p, s.Messages, s.Bytes,
		s.Elements))
}

// Block requires that a document has this text in the block of a name: between the lines "<!-- NAME
// -->" and "<!-- end -->", as a code block. With the test's flag -update, it writes the document.
func Block(t *testing.T, path, name, text string) {
	t.Helper()
	document, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(document), "<!-- "+name+" -->\n")
	_, after, ended := strings.Cut(rest, "<!-- end -->")
	require.True(t, found && ended, "%s has no block %s", path, name)
	File(t, path, before+"<!-- "+name+" -->\n```text\n"+text+"```\n<!-- end -->"+after)
}
