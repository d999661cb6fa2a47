// Package architecture holds the code against ARCHITECTURE.md.
package architecture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module   = "github.com/kernlb/kernlb/"
	root     = "../.."
	document = root + "/ARCHITECTURE.md"
)

// row is a row of the table of packages.
type row struct {
	packages []string
	allowed  []string // "everything" for all
	excepted []string // of what is allowed
}

// goPackage is what go list says of a package.
type goPackage struct {
	ImportPath string
	Imports    []string
}

var (
	tableRow = regexp.MustCompile("(?m)^\\| (`.*) \\| (.*) \\|$")
	codeSpan = regexp.MustCompile("`([^`]+)`")
)

// table reads the rows of the table.
func table(t *testing.T) []row {
	t.Helper()
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Packages, and what they may import\n")
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

// covers reports whether a package is one of the patterns: a path, or all below "path/…".
func covers(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		below, all := strings.CutSuffix(p, "…")
		return p == path || all && strings.HasPrefix(path+"/", below)
	})
}

// packages lists the packages of the module as they are on an operating system.
func packages(t *testing.T, system string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOOS="+system)
	text, err := cmd.Output()
	require.NoError(t, err)
	var out []goPackage
	for in := json.NewDecoder(strings.NewReader(string(text))); ; {
		var p goPackage
		err := in.Decode(&p)
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		for i, path := range p.Imports {
			p.Imports[i] = strings.TrimPrefix(path, module)
		}
		out = append(out, p)
	}
}

// checked says what is wrong with the imports of a package, and notes in used what it needs.
func (r *row) checked(p goPackage, own map[string]bool, used map[string]bool) []string {
	var wrong []string
	for _, path := range p.Imports {
		first, _, _ := strings.Cut(path, "/")
		if !own[path] && !strings.Contains(first, ".") {
			continue // the standard library
		}
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
	for _, system := range []string{"linux", "darwin"} {
		list := packages(t, system)
		own := map[string]bool{}
		for _, p := range list {
			own[p.ImportPath] = true
		}
		for _, p := range list {
			i := slices.IndexFunc(rows, func(r row) bool { return covers(r.packages, p.ImportPath) })
			if i < 0 {
				wrong = append(wrong, p.ImportPath+" is in no row of the table")
				continue
			}
			used[i][p.ImportPath] = true
			wrong = append(wrong, rows[i].checked(p, own, used[i])...)
		}
	}
	for i, r := range rows {
		for _, name := range slices.Concat(r.packages, r.allowed) {
			if !strings.HasSuffix(name, "…") && !used[i][name] {
				wrong = append(wrong, fmt.Sprintf("the row of %v names %s in vain", r.packages, name))
			}
		}
	}
	slices.Sort(wrong)
	require.Empty(t, slices.Compact(wrong), "ARCHITECTURE.md says what packages may import")
}
