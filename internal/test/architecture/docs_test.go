package architecture

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// files returns the files of the repository with a suffix, by their paths from its root.
func files(t *testing.T, suffix string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, suffix) || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		out[filepath.ToSlash(name)] = string(text)
		return err
	}))

	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	goBlock = regexp.MustCompile("(?s)\n```go\n(.*?)```\n")
)

// anchors returns the link targets of a document's headings.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		out[strings.ReplaceAll(strings.ToLower(strings.Map(func(r rune) rune {
			if strings.ContainsRune("`,.:()?!'", r) {
				return -1
			}
			return r
		}, m[1])), " ", "-")] = true
	}

	return out
}

func TestLinksInTheDocumentsLeadSomewhere(t *testing.T) {
	t.Parallel()
	documents := files(t, ".md")
	for name, text := range documents {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := name
			if target != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(name), target))
				_, err := os.Stat(filepath.Join(root, path))
				require.NoError(t, err, "%s links to %s", name, m[1])
			}

			if anchor != "" {
				require.Contains(t, anchors(documents[path]), anchor, "%s links to %s", name, m[1])
			}
		}
	}
}

// TestGoInTheDocumentsIsCompiled requires that each block of Go in the documents also stands in a
// compiled file of Go, in the same order and without other lines between, except where the document
// has "…".
func TestGoInTheDocumentsIsCompiled(t *testing.T) {
	t.Parallel()
	var code strings.Builder
	for _, text := range files(t, ".go") {
		code.WriteString("\n" + trimmed(text) + "\n")
	}
	for name, text := range files(t, ".md") {
		for _, block := range goBlock.FindAllStringSubmatch(text, -1) {
			for part := range strings.SplitSeq("\n"+trimmed(block[1]), "\n…") {
				if part = strings.TrimSpace(part); part != "" {
					require.Contains(t, code.String(), "\n"+part+"\n",
						"%s: Go that is in no file", name)
				}
			}
		}
	}
}

// trimmed returns the lines that are not empty, without the space around them and with single
// spaces within.
func trimmed(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			out = append(out, line)
		}
	}

	return strings.Join(out, "\n")
}
