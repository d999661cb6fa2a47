package golden

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDifferencesAreShown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ want, got, diff string }{
		{"a\nb\nc", "a\nb\nd", "@@ line 3: 1 lines, and 1 instead\n-c\n+d"},
		{"a\nc", "a\nb\nc", "@@ line 2: 0 lines, and 1 instead\n+b"},
		{"a\nb", "a", "@@ line 2: 1 lines, and 0 instead\n-b"},
		{"a\na", "a", "@@ line 2: 1 lines, and 0 instead\n-a"},
	} {
		require.Equal(t, tt.diff, difference(tt.want, tt.got))
	}

	long := difference("", strings.Repeat("y\n", 3000))
	require.Contains(t, long, "@@ line 1: 0 lines, and 3000 instead\n+y\n+y\n")
	require.Less(t, strings.Count(long, "\n"), 100)
}
