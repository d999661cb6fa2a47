package golden

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDifferencesAreShownAsDiffs(t *testing.T) {
	t.Parallel()
	many := strings.Split(strings.Repeat("x", 9), "")
	lines := func(l ...string) string { return strings.Join(l, "\n") }
	between := lines(many...)
	for _, tt := range []struct{ want, got, diff string }{
		{lines("a", "b", "c"), lines("a", "b", "d"), lines("@@ line 3", " a", " b", "-c", "+d")},
		{lines("a", "c"), lines("a", "b", "c"), lines("@@ line 2", " a", "+b")},
		{lines("a", "b"), "a", lines("@@ line 2", " a", "-b")},
		{lines("a", between, "b"), lines("A", between, "B"), lines("@@ line 1", "-a", "+A", " x",
			" x", " …", " x", " x", "-b", "+B")},
	} {
		require.Equal(t, tt.diff, difference(tt.want, tt.got))
	}
	long := strings.Split(strings.Repeat("y\n", 3000), "\n")
	require.Contains(t, difference("", lines(long...)), "more lines")
}
