package counts

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
)

// header is the beginning of the file. Allocations depend on the compiler.
const header = `# What work costs, see package counts.
# Written by %s with go test -p 1 PACKAGES -run TestCounts -update.
# Each figure is an average: of 200 services of 10 endpoints for full sync, adoption, state, table
# and difference; of one change for the others. Bytes stay on the heap in addition to the state.
`

// The tolerances: how much higher or lower a figure may be than in the file.
const (
	higher = 1.02
	lower  = 0.95
)

// columns are the figures of a row.
var columns = []struct {
	name string
	of   func(*Cost) *float64
}{
	{"allocations", func(c *Cost) *float64 { return &c.Allocations }},
	{"bytes", func(c *Cost) *float64 { return &c.Bytes }},
	{"messages", func(c *Cost) *float64 { return &c.Messages }},
	{"sent", func(c *Cost) *float64 { return &c.Sent }},
	{"asked", func(c *Cost) *float64 { return &c.Asked }},
	{"stays", func(c *Cost) *float64 { return &c.Stays }},
}

// Row is a line of the file: a cost with its name, which begins with a group and ": ".
type Row struct {
	Name string
	Cost Cost
}

// Compare compares the rows of a group with the file. With -update it writes them.
func Compare(t *testing.T, group string, rows []Row) {
	t.Helper()
	openFile(t, group).compare(rows)
}

// file is the file, for the rows of a group.
type file struct {
	t           *testing.T
	path, group string
	rows        []Row // of all groups
}

// openFile reads the file. It skips the test if the file is from a different compiler.
func openFile(t *testing.T, group string) *file {
	t.Helper()
	f := &file{t: t, path: path(t), group: group}
	text, err := os.ReadFile(f.path)
	require.NoError(t, err)
	if !golden.Updating() && !strings.Contains(string(text), compiler()+" ") {
		t.Skipf("counts of another compiler than %s", compiler())
	}
	f.rows = parse(t, string(text))
	return f
}

// accepts reports whether all rows have the costs in the file. With -update, a file accepts no
// rows.
func (f *file) accepts(rows []Row) bool {
	return !golden.Updating() && !slices.ContainsFunc(rows, func(r Row) bool {
		return f.problem(r) != nil
	})
}

// compare fails the test for each row whose cost differs, or writes the rows.
func (f *file) compare(rows []Row) {
	f.t.Helper()
	if golden.Updating() {
		text := written(compiler(), replaced(f.rows, f.group, rows))
		require.NoError(f.t, os.WriteFile(f.path, []byte(text), 0o644))
		return
	}

	for _, r := range rows {
		f.t.Logf("%s", line(r))
		if err := f.problem(r); err != nil {
			f.t.Errorf("%s: %v", r.Name, err)
		}
	}
}

// problem says how the cost of a row differs from the file.
func (f *file) problem(r Row) error {
	i := slices.IndexFunc(f.rows, func(known Row) bool { return known.Name == r.Name })
	if i < 0 {
		return errors.New("is not in the file: run this test with -update")
	}
	if err := f.rows[i].exceeded(r.Cost); err != nil {
		return fmt.Errorf("%w\nin the file %s\nnow         %s", err, line(f.rows[i]), line(r))
	}
	return nil
}

// exceeded names the figures that are higher or much lower than in the file.
func (r Row) exceeded(now Cost) error {
	var errs []error
	for _, c := range columns {
		is, was := *c.of(&now), *c.of(&r.Cost)
		switch {
		case is > was*higher+rounding:
			errs = append(errs, fmt.Errorf("%s grew by %.1f %%: make it less, or run this test "+
				"with -update and say why in the commit", c.name, 100*(is/was-1)))
		case is < was*lower-rounding:
			errs = append(errs, fmt.Errorf("%s shrank by %.1f %%: run this test with -update, so "+
				"that it stays so", c.name, 100*(1-is/was)))
		}
	}

	return errors.Join(errs...)
}

// rounding is the rounding error of a figure in the file.
const rounding = 0.05

// compiler is the version of Go without its last number.
func compiler() string {
	v := strings.SplitN(runtime.Version(), ".", 3)
	return strings.Join(v[:min(len(v), 2)], ".")
}

// path returns the path of the file, which is in the module's tree.
func path(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for ; dir != "/"; dir = filepath.Dir(dir) {
		p := filepath.Join(dir, "internal/test/counts/counts.txt")
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}

	t.Skip("the file is not here: the test runs outside of its tree")
	return ""
}

// parse reads the rows of the file.
func parse(t *testing.T, text string) (rows []Row) {
	t.Helper()
	for l := range strings.Lines(text) {
		fields := strings.Fields(l)
		if strings.HasPrefix(l, "#") || len(fields) <= len(columns) {
			continue
		}
		first := len(fields) - len(columns)
		r := Row{Name: strings.Join(fields[:first], " ")}
		for i, c := range columns {
			_, err := fmt.Sscan(fields[first+i], c.of(&r.Cost))
			require.NoError(t, err, l)
		}

		rows = append(rows, r)
	}

	return rows
}

// replaced returns old with new rows for a group, sorted by group.
func replaced(old []Row, group string, rows []Row) []Row {
	is := func(r Row) string { before, _, _ := strings.Cut(r.Name, ": "); return before }
	all := slices.DeleteFunc(old, func(r Row) bool { return is(r) == group })
	all = append(all, rows...)
	slices.SortStableFunc(all, func(a, b Row) int { return cmp.Compare(is(a), is(b)) })
	return all
}

// written returns the text of the file.
func written(version string, rows []Row) string {
	var b strings.Builder
	fmt.Fprintf(&b, header, version)
	fmt.Fprintf(&b, "#%33s", "")
	for _, c := range columns {
		fmt.Fprintf(&b, " %11s", c.name)
	}
	b.WriteString("\n")
	for _, r := range rows {
		b.WriteString(line(r) + "\n")
	}
	return b.String()
}

func line(r Row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-34s", r.Name)
	for _, c := range columns {
		v, digits := *c.of(&r.Cost), 0
		if v < 1000 {
			digits = 1
		}
		fmt.Fprintf(&b, " %11.*f", digits, v)
	}

	return b.String()
}
