// Package promised compares the metrics that a program serves with the promise of docs/metrics.md:
// all metrics in the queries of the alerts and the dashboard, except for the rows of a table.
package promised

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

// The names of metrics in queries and in the output of a program.
var (
	asked  = regexp.MustCompile(`\b(?:kernlb|kubeproxy|process)_\w+`)
	family = regexp.MustCompile(`(?m)^# TYPE (\w+) `)
	expr   = regexp.MustCompile(`(?m)^ *(?:expr: |"expr": ")(.*)$`)
	row    = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]*) \\|")
)

// Check requires that a program serves all metrics that the document promises for it, and no metric
// that the document says it lacks. root is the directory of the repository, and text is the answer
// of /metrics.
func Check(t testing.TB, root, program, text string) {
	t.Helper()
	read := func(name string) string {
		return string(must.OK(os.ReadFile(filepath.Join(root, name)))(t))
	}
	var want, got []string
	for _, name := range []string{"alerts.yaml", "dashboard.json"} {
		for _, m := range expr.FindAllStringSubmatch(read("dataplane/metrics/"+name), -1) {
			for _, name := range asked.FindAllString(m[1], -1) {
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					name = strings.TrimSuffix(name, suffix)
				}
				want = append(want, name)
			}
		}
	}

	slices.Sort(want)
	want = slices.Compact(want)
	require.Greater(t, len(want), 40, "the queries of alerts and the dashboard")
	all := slices.Clone(want)

	_, table, found := strings.Cut(read("docs/metrics.md"), "<!-- lacking -->\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "<!-- end -->")
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		require.Contains(t, all, m[1], "no alert and no panel asks for it")
		if programs := strings.Split(m[2], ", "); slices.Contains(programs, program) ||
			slices.Contains(programs, "all") {
			want = slices.DeleteFunc(want, func(name string) bool { return name == m[1] })
		}
	}

	for _, m := range family.FindAllStringSubmatch(text, -1) {
		if slices.Contains(all, m[1]) {
			got = append(got, m[1])
		}
	}

	slices.Sort(got)
	require.Equal(t, want, got, "docs/metrics.md and %s", program)
}
