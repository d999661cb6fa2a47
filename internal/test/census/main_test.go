package main

import (
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"
)

// A reader of the exported declarations can look up each type in them.
func TestNothingExportedHasAHiddenType(t *testing.T) {
	t.Chdir("../../..")
	files, err := read()
	require.NoError(t, err)
	require.Greater(t, len(files), 500)
	require.Empty(t, hidden(files))
}

func TestHiddenTypesAreFound(t *testing.T) {
	t.Parallel()
	const imports = "package p\nimport \"github.com/kernlb/kernlb/internal/wait\"\n"
	for text, want := range map[string]string{
		"type T = wait.Timer":                    "dir: T: wait.Timer",
		"type T struct{ F wait.Timer }":          "dir: T.F: wait.Timer",
		"type T struct{ wait.Timer }":            "dir: T: wait.Timer",
		"type T struct{ f wait.Timer }":          "",
		"type t struct{ F wait.Timer }":          "",
		"type T []small":                         "dir: T: small",
		"func F(a, b wait.Timer)":                "dir: F: wait.Timer",
		"func F() (int, *small)":                 "dir: F: small",
		"func f(small)":                          "",
		"func (t *T) M(small)":                   "dir: M: small",
		"func (t *t) M(small)":                   "",
		"var V wait.Timer":                       "dir: V: wait.Timer",
		"const C = wait.Short":                   "dir: C: wait.Short",
		"const C time.Duration = 2 * wait.Short": "",
	} {
		f := &file{name: "dir/file.go", set: token.NewFileSet()}
		var err error
		f.ast, err = parser.ParseFile(f.set, f.name, imports+text, 0)
		require.NoError(t, err, text)
		if got := hidden([]*file{f}); want == "" {
			require.Empty(t, got, text)
		} else {
			require.Equal(t, []string{want}, got, text)
		}
	}
}
