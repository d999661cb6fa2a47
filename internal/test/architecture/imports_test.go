// Package architecture compares the code with docs/packages.md and with the record of the API.
package architecture

import (
	"errors"
	"fmt"
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

const (
	module   = "github.com/kernlb/kernlb/"
	root     = "../../.."
	document = root + "/docs/packages.md"
)

// row is a row of the table of packages.
type row struct {
	packages []string
	allowed  []string // "everything" for all
	excepted []string // of what is allowed
}

var (
	tableRow = regexp.MustCompile("(?m)^\\| (`.*) \\| (.*) \\|$")
	codeSpan = regexp.MustCompile("`([^`]+)`")
)

// table reads the rows of the table.
func table(t *testing.T) []row {
	t.Helper()
	text := must.OK(os.ReadFile(document))(t)
	_, section, found := strings.Cut(string(text), "\n## What they may import\n")
	require.True(t, found, "the section on packages")
	section, _, _ = strings.Cut(section, "\n## ")
	var rows []row
	for _, m := range tableRow.FindAllStringSubmatch(section, -1) {
		allowed, excepted, _ := strings.Cut(m[2], " but ")
		r := row{packages: spans(m[1]), allowed: spans(allowed), excepted: spans(excepted)}
		if strings.HasPrefix(allowed, "everything") {
			r.allowed = append(r.allowed, "…")
		}
		rows = append(rows, r)
	}

	require.NotEmpty(t, rows)
	return rows
}

func spans(text string) []string {
	var out []string
	for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// covers reports whether a package matches a pattern: a path, or "path/…" for all packages below.
func covers(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		below, all := strings.CutSuffix(p, "…")
		return p == path || all && strings.HasPrefix(path+"/", below)
	})
}

// packages reads the packages of the main module as they are on an operating system.
func packages(t *testing.T, system string) []*build.Package { return read(t, system, false) }

// read reads packages as packages does, and with others also the packages of the other modules.
func read(t *testing.T, system string, others bool) []*build.Package {
	t.Helper()
	files := build.Default
	files.GOOS = system
	var out []*build.Package
	require.NoError(t, filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); dir != root && err == nil && !others ||
			d.Name() == "testdata" || d.Name() == ".git" {
			return fs.SkipDir
		}

		p, err := files.ImportDir(dir, 0)
		if none := (*build.NoGoError)(nil); errors.As(err, &none) {
			return nil
		}
		out = append(out, p)
		path, _ := filepath.Rel(root, dir)
		p.ImportPath = filepath.ToSlash(path)
		return err
	}))

	return out
}

// checked returns the faults of a package's imports, and notes its imports in used.
func (r *row) checked(p *build.Package, used map[string]bool) []string {
	var wrong []string
	for _, path := range p.Imports {
		if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
			continue // the standard library
		}
		path = strings.TrimPrefix(path, module)
		used[path] = true
		if !covers(r.allowed, path) || covers(r.excepted, path) {
			wrong = append(wrong, fmt.Sprintf("%s imports %s", p.ImportPath, path))
		}
	}

	return wrong
}

func TestPackagesImportWhatTheyMay(t *testing.T) {
	t.Parallel()
	rows := table(t)
	var wrong []string
	used := make([]map[string]bool, len(rows))
	for i := range used {
		used[i] = map[string]bool{}
	}
	for _, system := range []string{"linux", "darwin", "windows"} {
		for _, p := range read(t, system, true) {
			i := slices.IndexFunc(rows, func(r row) bool {
				return covers(r.packages, p.ImportPath)
			})
			if i < 0 {
				wrong = append(wrong, p.ImportPath+" is in no row of the table")
				continue
			}

			used[i][p.ImportPath] = true
			wrong = append(wrong, rows[i].checked(p, used[i])...)
		}
	}

	for i, r := range rows {
		for _, name := range slices.Concat(r.packages, r.allowed) {
			if !strings.HasSuffix(name, "…") && !used[i][name] {
				wrong = append(wrong, fmt.Sprintf("%v need not name %s", r.packages, name))
			}
		}
	}

	slices.Sort(wrong)
	require.Empty(t, strings.Join(slices.Compact(wrong), "\n"),
		"docs/packages.md says what packages may import")
}

// The examples that users copy are short, and each has a test that needs no kernel.
func TestExamplesCanBeCopied(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]int{"publish": 225, "nodeproxy": 250, "balancer": 225,
		"controller": 200} {
		dir := filepath.Join(root, "examples", name)
		text := must.OK(os.ReadFile(filepath.Join(dir, "main.go")))(t)
		require.LessOrEqual(t, strings.Count(string(text), "\n"), limit, name)
		require.Equal(t, []string{"main.go"}, must.OK(build.ImportDir(dir, 0))(t).GoFiles, name)
		text = must.OK(os.ReadFile(filepath.Join(dir, "main_test.go")))(t)
		require.Contains(t, string(text), "memory.New(", name)
	}
}
