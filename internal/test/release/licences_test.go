package release

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/must"
)

// licences has words from the texts of licences, by SPDX identifier. A program under Apache-2.0 may
// use code under each of these licences.
var licences = []struct {
	id    string
	words *regexp.Regexp
}{
	{"Apache-2.0", regexp.MustCompile(`Apache License,? Version 2\.0`)},
	{"BSD-2-Clause", regexp.MustCompile(
		`in binary form must .{60,270}provided with the distribution\. THIS SOFTWARE`)},
	{"BSD-3-Clause", regexp.MustCompile(`Neither the name|names of its contributors may not`)},
	{"ISC", regexp.MustCompile(`Permission to use, copy, modify,? and/or distribute this`)},
	{"MIT", regexp.MustCompile(`Permission is hereby granted, free of charge, to any person`)},
}

// TestLicencesAreListed compares docs/licences.md with the licences of all modules in the build of
// a program that imports every package of the published modules. The flag -update writes the
// document from the texts of the licences.
func TestLicencesAreListed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("nothing of it concerns the race detector")
	}
	users := map[string][]string{} // the published modules that build a module
	found := map[string]string{}   // its licences
	for _, dir := range published {
		list := run(t, filepath.Join(root, dir), []string{"GOWORK=off"},
			"go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}={{.Dir}}{{end}}", "./...")
		modules := strings.Fields(list)
		slices.Sort(modules)
		for _, m := range slices.Compact(modules) {
			if path, at, _ := strings.Cut(m, "="); !strings.HasPrefix(path, kernlb) {
				user := strings.TrimPrefix(module(dir), "github.com/kernlb/")
				users[path] = append(users[path], user)
				found[path] = licence(t, at)
			}
		}
	}

	text := `# Licences

kernlb is under the [Apache License 2.0](../LICENSE). A program that imports kernlb uses
only modules from this list.

| module | licence | used by |
|---|---|---|
`
	for _, path := range slices.Sorted(maps.Keys(found)) {
		text += fmt.Sprintf("| %s | %s | %s |\n",
			path, found[path], strings.Join(users[path], ", "))
	}

	golden.File(t, filepath.Join(root, "docs/licences.md"), text)
}

// licence returns the licences of the module in dir.
func licence(t *testing.T, dir string) string {
	t.Helper()
	text := ""
	for _, pattern := range []string{"LICEN*", "licen*", "COPYING*"} {
		for _, file := range must.OK(filepath.Glob(filepath.Join(dir, pattern)))(t) {
			text += read(t, file) + "\n"
		}
	}

	text = strings.Join(strings.Fields(text), " ")
	var ids []string
	for _, l := range licences {
		if l.words.MatchString(text) {
			ids = append(ids, l.id)
		}
	}

	require.NotEmpty(t, ids, "the licence of %s", dir)
	return strings.Join(ids, ", ")
}
