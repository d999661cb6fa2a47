package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// sharingRows returns the rows in the table of sharing.md for a package that contain a word.
func sharingRows(t *testing.T, whose, word string) string {
	t.Helper()
	var rows []string
	for line := range strings.Lines(source(t, "../../../docs/sharing.md")) {
		if strings.HasPrefix(line, "| `"+whose+"` |") && strings.Contains(line, word) {
			rows = append(rows, line)
		}
	}

	require.NotEmpty(t, rows, "%s: %s", whose, word)
	return strings.Join(rows, "")
}

// The names and numbers in sharing.md match the code.
func TestSharingSaysWhatIsOurs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ whose, word, want string }{
		{"nftables", "tables", "`ip " + "kernlb" + "`"},
		{"nftables", "bit", fmt.Sprintf("0x%x", servicemodel.DefaultMasqueradeMark)},
		{"iptables", "chains that begin", "`" + "KUBE" + "-`"},
		{"ipvs", "tables", "`ip " + "kernlb-ipvs" + "`"},
		{"dataplane/counters", "tables", "`ip " + "kernlb-counters" + "`"},
		{"dataplane/livetrace", "table", constant(t, "../../../dataplane/livetrace/tracer_linux.go",
			"tableName")},
		{"iptables", "bit", "0x4000"},
		{"ipvs", "policy rule",
			"priority " + constant(t, "../../../ipvs/layout.go", "rulePriority")},
		{"iptables", "rules in", constant(t, "../../../iptables/layout.go", "prioDNAT")},
		{"iptables", "rules in", constant(t, "../../../iptables/layout.go", "prioSNAT")},
	} {
		require.Contains(t, sharingRows(t, c.whose, c.word), c.want)
	}

	require.Contains(t, sharingRows(t, "ipvs", "rule of priority"), "0x6b000000")
	golden := source(t, "../../../ipvs/testdata/01-first.plan")
	mark := regexp.MustCompile(`& 0xfff00000 == (0x[0-9a-f]{8})`).FindStringSubmatch(golden)
	require.Contains(t, sharingRows(t, "ipvs", "marks"), mark[1])
}

// The priorities of hooks in sharing.md match the plans of the backends.
func TestSharingKnowsTheHooks(t *testing.T) {
	t.Parallel()
	for whose, plans := range map[string]string{"nftables": "../../../nftables/testdata/*.nft",
		"ipvs":               "../../../ipvs/testdata/*.plan",
		"dataplane/counters": "../../../dataplane/counters/doc.go"} {
		_, list, _ := strings.Cut(sharingRows(t, whose, "hooks at "), "hooks at ")
		list, _, _ = strings.Cut(list, "|")
		list, _, _ = strings.Cut(list, ", while")
		require.Equal(t, priorities(t, plans), numbers(t, list), whose)
	}
}

// priorities returns the priorities of the base chains in some files.
func priorities(t *testing.T, pattern string) []int {
	t.Helper()
	files := must.OK(filepath.Glob(pattern))(t)
	var all string
	for _, f := range files {
		for _, m := range regexp.MustCompile(`hook [a-z]+ priority (-?\d+)`).FindAllStringSubmatch(
			source(t, f), -1) {
			all += " " + m[1]
		}
	}

	return numbers(t, all)
}

// numbers returns the numbers in a text, sorted, each once.
func numbers(t *testing.T, text string) (l []int) {
	t.Helper()
	for _, s := range regexp.MustCompile(`-?\d+`).FindAllString(text, -1) {
		n := must.OK(strconv.Atoi(s))(t)
		l = append(l, n)
	}

	slices.Sort(l)
	return slices.Compact(l)
}

// constant returns the value of a constant in a source file.
func constant(t *testing.T, file, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)\b` + name + ` += "?([^"\s]+)`).FindStringSubmatch(source(t, file))
	require.NotNil(t, m, "%s: %s", file, name)
	return m[1]
}

func source(t *testing.T, file string) string {
	t.Helper()
	b := must.OK(os.ReadFile(file))(t)
	return string(b)
}
