// Package golden compares what tests make with files.
package golden

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
)

var update = flag.Bool("update", false, "write the golden files")

// File requires that a text is that of a file. With the flag -update of the test, it writes the
// file.
func File(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "%s: run this test with -update if that is meant", path)
}

// Plan requires that the text of a plan, and what it costs, are those of a file.
func Plan(t *testing.T, path string, p dataplane.Plan) {
	t.Helper()
	s := p.Stats()
	File(t, path, fmt.Sprintf("%s# %d messages, %d bytes, %d elements\n", p, s.Messages, s.Bytes,
		s.Elements))
}
