package architecture

import (
	"bytes"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/must"
)

// record is the exported API of the module. A change of the file is visible in review, and needs an
// entry in CHANGELOG.md. CONTRIBUTING.md says what may change.
const record = "testdata/api.txt"

func TestTheExportedAPIIsTheRecordedOne(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	for _, p := range packages(t, "linux") {
		if p.Name == "main" || strings.Contains("/"+p.ImportPath+"/", "/internal/") {
			continue
		}
		got.WriteString("package " + p.ImportPath + "\n\n")
		for _, decl := range exported(t, p) {
			got.WriteString(decl + "\n")
		}
		got.WriteByte('\n')
	}

	golden.File(t, record, got.String())
}

// exported returns the exported declarations of a package in the order of go doc, without comments
// and bodies.
func exported(t *testing.T, p *build.Package) []string {
	t.Helper()
	set, d := documented(t, p, 0)
	var out []string
	add := func(decl ast.Node) {
		var b strings.Builder
		require.NoError(t, (&printer.Config{Mode: printer.UseSpaces, Tabwidth: 4}).Fprint(&b, set,
			decl))
		out = append(out, b.String())
	}

	walk(d, func(l []*doc.Value) {
		for _, v := range l {
			add(v.Decl)
		}
	}, func(l []*doc.Func, _ string) {
		for _, f := range l {
			f.Decl.Body = nil
			add(f.Decl)
		}
	}, func(typ *doc.Type) { add(typ.Decl) })

	return out
}

// walk visits the declarations of a package in the order of go doc. prefix is the type of methods,
// with a dot.
func walk(d *doc.Package, values func([]*doc.Value), functions func(l []*doc.Func, prefix string),
	declared func(*doc.Type)) {
	values(d.Consts)
	values(d.Vars)
	functions(d.Funcs, "")
	for _, typ := range d.Types {
		declared(typ)
		values(typ.Consts)
		values(typ.Vars)
		functions(typ.Funcs, "")
		functions(typ.Methods, typ.Name+".")
	}
}

// documented parses a package.
func documented(t *testing.T, p *build.Package, mode parser.Mode) (*token.FileSet, *doc.Package) {
	t.Helper()
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range append(p.GoFiles, p.CgoFiles...) {
		files = append(files, must.OK(parser.ParseFile(set, filepath.Join(p.Dir, name), nil,
			mode|parser.SkipObjectResolution))(t))
	}

	return set, must.OK(doc.NewFromFiles(set, files, module+p.ImportPath))(t)
}
