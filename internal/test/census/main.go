// Command census counts the code: its lines by floor, the sizes of its functions, the exported
// signatures with types that their readers cannot name, and the functions that run when one
// endpoint is replaced and when a program starts.
//
// Usage: census [-roads]
//
// It runs in the root of the repository. The roads need root, because they run tests.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/internal/test/road"
)

func main() {
	roads := flag.Bool("roads", false, "count the functions of the two roads, too")
	flag.Parse()
	if err := run(*roads); err != nil {
		fmt.Fprintln(os.Stderr, "census:", err)
		os.Exit(1)
	}
}

func run(roads bool) error {
	files, err := read()
	if err != nil {
		return err
	}
	lines(files)
	functions(files)
	found := hidden(files)
	fmt.Printf("hidden types in exported declarations: %d\n", len(found))
	for _, line := range found {
		fmt.Println("  " + line)
	}
	if roads {
		return walks(files)
	}
	return nil
}

// file is a source file that git tracks, or that is new and not ignored.
type file struct {
	name string
	text []byte
	set  *token.FileSet
	ast  *ast.File
}

func (f *file) test() bool { return strings.HasSuffix(f.name, "_test.go") }

// floor returns the part of the tree to which a file belongs.
func (f *file) floor() string {
	switch {
	case f.test():
		return "tests"
	case strings.HasPrefix(f.name, "internal/test/"):
		return "apparatus"
	case strings.HasPrefix(f.name, "examples/"):
		return "programs"
	}

	return "library"
}

// budgets limit the lines of code of each floor.
var budgets = []struct {
	floor string
	most  int
}{{"library", 45000}, {"programs", 13500}, {"apparatus", 11500}, {"tests", 60000}}

func read() ([]*file, error) {
	out, err := exec.Command("git", "ls-files", "-co", "--exclude-standard", "*.go").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	var files []*file
	for name := range strings.Lines(string(out)) {
		f := &file{name: strings.TrimSpace(name), set: token.NewFileSet()}
		if f.text, err = os.ReadFile(f.name); errors.Is(err, os.ErrNotExist) {
			continue // deleted, and not yet committed
		} else if err != nil {
			return nil, err
		}

		if f.ast, err = parser.ParseFile(f.set, f.name, f.text,
			parser.ParseComments|parser.SkipObjectResolution); err != nil {
			return nil, err
		}

		files = append(files, f)
	}

	return files, nil
}

// lines prints the lines of code of each floor, and the shares of blank lines and comments. A line
// of code has a token other than a comment.
func lines(files []*file) {
	code, all, blank, comment := map[string]int{}, 0, 0, 0
	for _, f := range files {
		var s scanner.Scanner
		set := token.NewFileSet()
		s.Init(set.AddFile(f.name, -1, len(f.text)), f.text, nil, 0)
		with := map[int]bool{}
		for {
			pos, tok, text := s.Scan()
			if tok == token.EOF {
				break
			}
			if tok == token.SEMICOLON && text == "\n" {
				continue
			}
			first := set.Position(pos).Line
			for i := range strings.Count(text, "\n") + 1 {
				with[first+i] = true
			}
		}

		code[f.floor()] += len(with)

		n := 0
		for line := range bytes.Lines(f.text) {
			if n++; len(bytes.TrimSpace(line)) == 0 {
				blank++
			} else if !with[n] {
				comment++
			}
		}

		all += n
	}

	for _, b := range budgets {
		fmt.Printf("%-10s %6d lines of code, budget %6d\n", b.floor, code[b.floor], b.most)
	}
	share := func(n int) float64 { return 100 * float64(n) / float64(all) }
	fmt.Printf("blank %.1f %%, comments %.1f %% of %d lines in %d files\n", share(blank),
		share(comment), all, len(files))
}

// functions prints the sizes of functions outside of tests.
func functions(files []*file) {
	var length, branches []int
	for _, f := range files {
		if f.test() {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			length = append(length, f.set.Position(fn.End()).Line-f.set.Position(fn.Pos()).Line+1)
			branches = append(branches, complexity(fn.Body))
		}
	}

	slices.Sort(length)
	slices.Sort(branches)
	over := func(n int) int {
		i, _ := slices.BinarySearch(branches, n+1)
		return len(branches) - i
	}

	n := len(length)
	fmt.Printf("functions %d: lines med %d, p90 %d, max %d; branches p90 %d, max %d, over 10: %d, "+
		"over 15: %d\n", n, length[n/2], length[n*9/10], length[n-1], branches[n*9/10],
		branches[n-1], over(10), over(15))
}

func complexity(body ast.Node) int {
	n := 1
	ast.Inspect(body, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if node.List != nil {
				n++
			}
		case *ast.CommClause:
			n++
		case *ast.BinaryExpr:
			if node.Op == token.LAND || node.Op == token.LOR {
				n++
			}
		}

		return true
	})

	return n
}

// hidden returns the exported identifiers of public packages whose declarations name a type that is
// not exported, or that only this module can import.
func hidden(files []*file) (found []string) {
	for _, f := range files {
		if f.floor() != "library" || strings.Contains("/"+f.name, "/internal/") ||
			f.ast.Name.Name == "main" {
			continue
		}

		internal := map[string]bool{}
		for _, imp := range f.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			if strings.Contains(p+"/", "/internal/") && strings.Contains(p, "kernlb") {
				name := path.Base(p)
				if imp.Name != nil {
					name = imp.Name.Name
				}
				internal[name] = true
			}
		}

		see := func(owner string, nodes ...ast.Node) {
			for _, bad := range unnamed(internal, nodes...) {
				found = append(found, fmt.Sprintf("%s: %s: %s", path.Dir(f.name), owner, bad))
			}
		}

		for _, d := range f.ast.Decls {
			declaration(d, see)
		}
	}

	return found
}

// declaration calls see for everything that d exports, with its name and the syntax of its type.
func declaration(d ast.Decl, see func(owner string, nodes ...ast.Node)) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if !d.Name.IsExported() {
			return
		}
		if d.Recv != nil {
			recv := d.Recv.List[0].Type
			if star, ok := recv.(*ast.StarExpr); ok {
				recv = star.X
			}
			if id, ok := recv.(*ast.Ident); !ok || !id.IsExported() {
				return
			}
		}

		see(d.Name.Name, d.Type)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if !s.Name.IsExported() {
					continue
				}
				if st, ok := s.Type.(*ast.StructType); ok {
					for _, field := range st.Fields.List {
						for _, name := range field.Names {
							if name.IsExported() {
								see(s.Name.Name+"."+name.Name, field.Type)
							}
						}

						if field.Names == nil {
							see(s.Name.Name, field.Type)
						}
					}
				} else {
					see(s.Name.Name, s.Type)
				}
			case *ast.ValueSpec:
				if s.Names[0].IsExported() {
					see(s.Names[0].Name, typed(s)...)
				}
			}
		}
	}
}

// typed returns the type of a constant or variable. If the type is not declared, it returns the
// values of other packages that determine the type.
func typed(s *ast.ValueSpec) (nodes []ast.Node) {
	if s.Type != nil {
		return []ast.Node{s.Type}
	}
	for _, v := range s.Values {
		if _, ok := v.(*ast.SelectorExpr); ok {
			nodes = append(nodes, v)
		}
	}

	return nodes
}

// unnamed returns the types in nodes that a reader outside of the module cannot name.
func unnamed(internal map[string]bool, nodes ...ast.Node) (bad []string) {
	var walk func(n ast.Node) bool
	walk = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok && internal[id.Name] {
				bad = append(bad, id.Name+"."+n.Sel.Name)
			}
			return false
		case *ast.Field:
			ast.Inspect(n.Type, walk) // not the names of parameters
			return false
		case *ast.FuncType:
			if n.TypeParams != nil {
				return false
			}
		case *ast.Ident:
			if !n.IsExported() && types.Universe.Lookup(n.Name) == nil {
				bad = append(bad, n.Name)
			}
		}

		return true
	}

	for _, n := range nodes {
		ast.Inspect(n, walk)
	}
	return bad
}

// walks prints the number of functions that run on each road, for each backend.
func walks(files []*file) error {
	dir, err := os.MkdirTemp("", "census")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	for _, backend := range []string{"nftables", "iptables", "ipvs"} {
		binary := filepath.Join(dir, backend)
		build := exec.Command("go", "test", "-c", "-covermode=count", "-coverpkg=./...",
			"-o", binary, "./"+backend)
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("go test -c ./%s: %w", backend, err)
		}
		count := map[string]map[string]int{}
		for _, step := range []string{road.Prepared, road.Endpoint, road.Opened, road.Started} {
			if count[step], err = covered(binary, backend, step, files); err != nil {
				return err
			}
		}

		report(backend, "one endpoint", count[road.Prepared], count[road.Endpoint], files)
		report(backend, "start", count[road.Opened], count[road.Started], files)
	}

	return nil
}

// covered runs TestRoad up to a step, and returns the number of calls of each function.
func covered(binary, dir, step string, files []*file) (map[string]int, error) {
	profile := binary + "." + step
	cmd := exec.Command(binary, "-test.run=^TestRoad$", "-test.coverprofile="+profile)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), road.Variable+"="+step)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("TestRoad of %s up to %q: %w: %s", dir, step, err, out)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	times := map[string]map[int]int{} // by file and first line of a block
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		name, rest, found := strings.Cut(s.Text(), ":")
		fields := strings.Fields(rest)
		if !found || len(fields) != 3 || fields[2] == "0" {
			continue
		}
		line, _, _ := strings.Cut(fields[0], ".")
		at, err := strconv.Atoi(line)
		n, err2 := strconv.Atoi(fields[2])
		if err := cmp.Or(err, err2); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", profile, s.Text(), err)
		}
		name = strings.TrimPrefix(name, "github.com/kernlb/kernlb/")
		if times[name] == nil {
			times[name] = map[int]int{}
		}
		times[name][at] = max(times[name][at], n)
	}

	began := map[string]int{}
	for _, f := range files {
		for _, fn := range named(f) {
			if n := times[f.name][fn.body]; n > 0 {
				began[fn.name] = n
			}
		}
	}

	return began, nil
}

// function is a function of a file.
type function struct {
	name  string // with the file
	body  int    // the line of its opening brace
	lines int
}

func named(f *file) (out []function) {
	for _, d := range f.ast.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		first, last := f.set.Position(fn.Pos()).Line, f.set.Position(fn.End()).Line
		out = append(out, function{fmt.Sprintf("%s:%d:%s", f.name, first, fn.Name.Name),
			f.set.Position(fn.Body.Lbrace).Line, last - first + 1})
	}

	return out
}

// report prints the functions that ran more often after a step than before it, without apparatus
// and tests, and the number of these functions with more than three lines.
func report(backend, what string, before, after map[string]int, files []*file) {
	all, long := 0, 0
	in, packages := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		if floor := f.floor(); floor == "apparatus" || floor == "tests" {
			continue
		}
		for _, fn := range named(f) {
			if after[fn.name] <= before[fn.name] {
				continue
			}
			if all++; fn.lines > 3 {
				long++
			}
			in[f.name], packages[path.Dir(f.name)] = true, true
		}
	}

	fmt.Printf("%-8s %-12s: %d functions, %d of more than 3 lines, in %d files of %d packages\n",
		backend, what, all, long, len(in), len(slices.Collect(maps.Keys(packages))))
}
