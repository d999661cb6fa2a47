package architecture

import (
	"bytes"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

// layered has the packages whose files have an order: each file uses only earlier files. So a
// reader can begin with a file that uses no other file.
var layered = []string{"dataplane/memory", "nftables", "nftables/internal/form",
	"nftables/internal/plan", "nftables/internal/read"}

func TestFilesUseNoFileThatUsesThem(t *testing.T) {
	t.Parallel()
	args := []string{"list", "-deps", "-export", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, path := range layered {
		args = append(args, "./"+path)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOOS=linux")
	exported := map[string]string{} // the file with the types of a package
	for line := range strings.Lines(string(must.OK(cmd.Output())(t))) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exported[path] = file
	}

	lookup := func(path string) (io.ReadCloser, error) {
		b, err := os.ReadFile(exported[path])
		return io.NopCloser(bytes.NewReader(b)), err
	}

	for _, p := range packages(t, "linux") {
		if !slices.Contains(layered, p.ImportPath) {
			continue
		}
		uses := fileUses(t, p.ImportPath, p.GoFiles, lookup)
		require.Greater(t, len(uses), 1, p.ImportPath)
		for again := true; again; { // leave out files that use no other remaining file
			again = false
			for _, file := range slices.Sorted(maps.Keys(uses)) {
				if len(uses[file]) == 0 {
					again = true
					delete(uses, file)
					for _, others := range uses {
						delete(others, file)
					}
				}
			}
		}

		require.Empty(t, uses, "%s: each of these files uses others that use it, and what it "+
			"uses them for", p.ImportPath)
	}
}

// fileUses returns, for each file of a package, the other files that it uses, with the used names.
func fileUses(t *testing.T, path string, names []string, lookup importer.Lookup) (
	uses map[string]map[string][]string) {
	t.Helper()
	set, files := token.NewFileSet(), []*ast.File(nil)
	for _, name := range names {
		files = append(files, must.OK(parser.ParseFile(set, filepath.Join(root, path, name), nil,
			parser.SkipObjectResolution))(t))
	}

	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	cfg := types.Config{Importer: importer.ForCompiler(set, "gc", lookup)}
	pkg := must.OK(cfg.Check(module+path, set, files, info))(t)

	uses = map[string]map[string][]string{}
	for _, name := range names {
		uses[name] = map[string][]string{}
	}
	fileOf := func(pos token.Pos) string { return filepath.Base(set.Position(pos).Filename) }
	for id, of := range info.Uses {
		from, to := fileOf(id.Pos()), fileOf(of.Pos())
		_, imported := of.(*types.PkgName)
		if of.Pkg() == pkg && !imported && from != to &&
			!slices.Contains(uses[from][to], of.Name()) {
			uses[from][to] = append(uses[from][to], of.Name())
		}
	}

	return uses
}
