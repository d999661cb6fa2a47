//go:build unix

package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mutant replaces the text of a file between two offsets.
type mutant struct {
	key      string // file, function and change, as in equivalent.txt
	file     string
	from, to int
	line     int
	wrap     string // code that chooses; verbs: 1 the mutant's number, 2 the old text, 3 the new
	text     string // the new text
	number   int    // among those drawn, from 1
	reached  bool   // by a test

	equivalent bool
}

const (
	expression = "(func() %s { if kernlbMutant(%%[1]d) { return %%[3]s }; return %%[2]s }())"
	statement  = "{ if kernlbMutant(%[1]d) { %[3]s } else { %[2]s } }"
)

// operators has the replacement of each operator.
var operators = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS,
	token.GTR: token.GEQ, token.GEQ: token.GTR, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.ADD, token.QUO: token.MUL,
	token.REM: token.QUO, token.SHL: token.SHR, token.SHR: token.SHL, token.AND: token.OR,
	token.OR: token.AND, token.AND_NOT: token.AND, token.XOR: token.AND,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN, token.INC: token.DEC,
	token.DEC: token.INC, token.BREAK: token.CONTINUE, token.CONTINUE: token.BREAK,
}

// unit is a package in source, with its types and mutants.
type unit struct {
	dir, path string // where it is, and how it is imported
	set       *token.FileSet
	files     map[string]*ast.File
	source    map[string][]byte
	info      types.Info
	imports   types.Importer
	mutants   []*mutant
	seen      map[string]int // keys
	function  string         // where the finder is
	literals  int            // that were found
}

// load reads the package in a directory below the present one, and finds its mutants.
func load(dir string) (*unit, error) {
	u := &unit{set: token.NewFileSet(), files: map[string]*ast.File{}, seen: map[string]int{},
		source: map[string][]byte{}, info: types.Info{Types: map[ast.Expr]types.TypeAndValue{},
			Uses: map[*ast.Ident]types.Object{}}}
	out, err := command(dir, nil, "go", "list", "-export", "-deps", "-f",
		`{{.ImportPath}}|{{.Dir}}|{{.Export}}|{{join .GoFiles "|"}}`, ".")
	if err != nil {
		return nil, err
	}
	var fields []string // in the end those of the package itself
	exports := map[string]string{}
	for line := range strings.Lines(out) {
		fields = strings.Split(strings.TrimSpace(line), "|")
		exports[fields[0]] = fields[2]
	}

	u.path, u.dir = fields[0], fields[1]
	u.imports = importer.ForCompiler(u.set, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	for _, name := range fields[3:] {
		name = filepath.Join(u.dir, name)
		if u.source[name], err = os.ReadFile(name); err != nil {
			return nil, err
		}
		u.files[name], err = parser.ParseFile(u.set, name, u.source[name], 0)
		if err != nil {
			return nil, err
		}
	}

	if err := u.check("", nil, &u.info); err != nil {
		return nil, err
	}
	for _, name := range fields[3:] {
		for _, d := range u.files[filepath.Join(u.dir, name)].Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && f.Name.Name != "String" {
				u.function, u.literals = f.Name.Name, 0
				if f.Recv != nil {
					u.function = strings.Trim(u.text(f.Recv.List[0].Type), "*") + "." + f.Name.Name
				}
				ast.Inspect(f.Body, func(n ast.Node) bool {
					u.visitStatement(n)
					return u.visitExpression(n)
				})
			}
		}
	}

	return u, nil
}

// check checks the types of the package, with new content for one file.
func (u *unit) check(changed string, with *ast.File, info *types.Info) error {
	var files []*ast.File
	for name, f := range u.files {
		if name == changed {
			f = with
		}
		files = append(files, f)
	}

	_, err := (&types.Config{Importer: u.imports}).Check(u.path, u.set, files, info)
	return err
}

// compiles reports whether a mutant has correct types.
func (u *unit) compiles(m *mutant) bool {
	f, err := parser.ParseFile(u.set, m.file, string(u.schema(m.file, []*mutant{m}))+
		"\nfunc kernlbMutant(int) bool { return true }\n", 0)
	return err == nil && u.check(m.file, f, nil) == nil
}

func (u *unit) text(n ast.Node) string {
	p := u.set.Position(n.Pos())
	return string(u.source[p.Filename][p.Offset:u.set.Position(n.End()).Offset])
}

// add adds a mutant that replaces a node by another text.
func (u *unit) add(n ast.Node, wrap, text, change string) {
	p := u.set.Position(n.Pos())
	name, _ := filepath.Rel(start, p.Filename)
	key := name + " " + u.function + ": " + strings.Join(strings.Fields(change), " ")
	if u.seen[key]++; u.seen[key] > 1 {
		key += " #" + strconv.Itoa(u.seen[key])
	}
	u.mutants = append(u.mutants, &mutant{key: key, file: p.Filename, from: p.Offset,
		to: u.set.Position(n.End()).Offset, line: p.Line, wrap: wrap, text: text})
}

// visitExpression adds the mutants of an expression, and reports whether its subexpressions matter.
func (u *unit) visitExpression(n ast.Node) bool {
	replace := func(e ast.Expr, text string) {
		name := types.TypeString(types.Default(u.info.TypeOf(e)), func(p *types.Package) string {
			if p.Path() == u.path {
				return ""
			}
			return p.Name()
		})
		u.add(e, fmt.Sprintf(expression, name), text, u.text(e)+" → "+text)
	}

	switch n := n.(type) {
	case *ast.CallExpr:
		return !u.isText(n)
	case *ast.ArrayType, *ast.GenDecl:
		return false // of constants
	case *ast.BinaryExpr:
		if op := operators[n.Op]; op != 0 && !u.isString(n) && u.info.Types[n].Value == nil {
			replace(n, u.text(n.X)+" "+op.String()+" "+u.text(n.Y))
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			replace(n, u.text(n.X))
		}
	case *ast.BasicLit:
		if v, err := strconv.ParseInt(n.Value, 0, 64); err == nil && n.Kind == token.INT {
			if u.literals++; u.literals%2 == 0 && v > 0 {
				v -= 2
			}
			replace(n, strconv.FormatInt(v+1, 10))
		}
	case *ast.Ident:
		if o := u.info.Uses[n]; o == types.Universe.Lookup("true") {
			replace(n, "false")
		} else if o == types.Universe.Lookup("false") {
			replace(n, "true")
		}
	case *ast.IfStmt:
		switch n.Cond.(type) {
		case *ast.Ident, *ast.CallExpr, *ast.SelectorExpr:
			replace(n.Cond, "!"+u.text(n.Cond))
		}
	}

	return true
}

// visitStatement adds the mutants of a statement.
func (u *unit) visitStatement(n ast.Node) {
	replace := func(s ast.Stmt, text string) { u.add(s, statement, text, u.text(s)+" → "+text) }
	switch n := n.(type) {
	case *ast.ExprStmt:
		if c, ok := n.X.(*ast.CallExpr); ok && !u.isText(c) {
			u.add(n, statement, "", "without "+u.text(n))
		}
	case *ast.AssignStmt:
		c, isCall := n.Rhs[0].(*ast.CallExpr)
		if n.Tok != token.DEFINE && u.text(n.Lhs[0]) != "_" && !(isCall && u.isText(c)) {
			u.add(n, statement, "", "without "+u.text(n))
		}
		if op := operators[n.Tok]; op != 0 && !u.isString(n.Lhs[0]) {
			replace(n, u.text(n.Lhs[0])+" "+op.String()+" "+u.text(n.Rhs[0]))
		}
	case *ast.IncDecStmt:
		replace(n, u.text(n.X)+operators[n.Tok].String())
	case *ast.BranchStmt:
		if op := operators[n.Tok]; op != 0 && n.Label == nil {
			replace(n, op.String())
		}
	case *ast.ReturnStmt: // the error is forgotten
		if len(n.Results) > 0 {
			last, old := n.Results[len(n.Results)-1], u.text(n)
			if types.Identical(u.info.TypeOf(last), types.Universe.Lookup("error").Type()) {
				replace(n, old[:last.Pos()-n.Pos()]+"nil")
			}
		}
	}
}

func (u *unit) isString(e ast.Expr) bool {
	t, ok := u.info.TypeOf(e).Underlying().(*types.Basic)
	return ok && t.Info()&types.IsString != 0
}

// isText reports whether a call has no mutants: it only produces text (logs, errors), takes a lock
// (the race detector tests locks), reserves memory, or cannot be left out.
func (u *unit) isText(c *ast.CallExpr) bool {
	id, ok := ast.Unparen(c.Fun).(*ast.Ident)
	if s, isSelector := ast.Unparen(c.Fun).(*ast.SelectorExpr); isSelector {
		id, ok = s.Sel, true
	}
	if !ok {
		return false
	}
	o := u.info.Uses[id]
	if o == nil || o.Pkg() == nil {
		_, isMap := u.info.TypeOf(c).(*types.Map)
		return id.Name == "panic" || id.Name == "make" && (isMap || len(c.Args) == 3)
	}

	switch path := o.Pkg().Path(); path {
	case "log/slog", "errors", "sync":
		return true
	default:
		return path == "fmt" && o.Name() == "Errorf" || o.Name() == "Grow"
	}
}
