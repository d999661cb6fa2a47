// Package golden compares the results of tests with files.
package golden

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
)

var update = flag.Bool("update", false, "write the golden files")

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
			"meant; - is in the file, + is not:\n%s", difference(string(want), text))
	}
}

// Limits of a diff: lines that are compared with one another, lines that are printed, and equal
// lines around a difference.
const (
	maxCompared = 2000
	maxPrinted  = 60
	around      = 2
)

// difference returns the lines in which two texts differ, as diff does: "-" begins a wanted line
// that is missing, "+" a surplus line.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	first := 0
	for first < len(w) && first < len(g) && w[first] == g[first] {
		first++
	}
	out := []string{fmt.Sprintf("@@ line %d", first+1)}
	same := w[max(0, first-around):first] // equal lines that are not printed yet
	change := func(sign, line string) {
		if hidden := len(same) - 2*around; hidden > 0 {
			same = slices.Concat(same[:around], []string{"…"}, same[len(same)-around:])
		}
		for _, s := range same {
			out = append(out, " "+s)
		}
		out, same = append(out, sign+line), nil
	}
	w, g = w[first:], g[first:]
	w, g = w[:min(len(w), maxCompared)], g[:min(len(g), maxCompared)]
	common := commonLines(w, g)
	for i, j := 0, 0; i < len(w) || j < len(g); {
		switch {
		case i < len(w) && j < len(g) && w[i] == g[j]:
			same = append(same, w[i])
			i, j = i+1, j+1
		case j == len(g) || i < len(w) && common[i+1][j] >= common[i][j+1]:
			change("-", w[i])
			i++
		default:
			change("+", g[j])
			j++
		}
	}
	if more := len(out) - maxPrinted; more > 0 {
		out = append(out[:maxPrinted], fmt.Sprintf("and %d more lines", more))
	}
	return strings.Join(out, "\n")
}

// commonLines returns for each pair of indices how many lines the rests of two texts have in
// common, in the same order.
func commonLines(w, g []string) [][]uint16 {
	n := make([][]uint16, len(w)+1)
	n[len(w)] = make([]uint16, len(g)+1)
	for i := len(w) - 1; i >= 0; i-- {
		n[i] = make([]uint16, len(g)+1)
		for j := len(g) - 1; j >= 0; j-- {
			if n[i][j] = max(n[i+1][j], n[i][j+1]); w[i] == g[j] {
				n[i][j] = n[i+1][j+1] + 1
			}
		}
	}
	return n
}

// Plan compares the text and the cost of a plan with a file.
func Plan(t *testing.T, path string, p dataplane.Plan) {
	t.Helper()
	s := p.Stats()
	File(t, path, fmt.Sprintf("%s# %d messages, %d bytes, %d elements\n", p, s.Messages, s.Bytes,
		s.Elements))
}
