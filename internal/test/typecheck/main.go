// Command typecheck checks that modules compile on other systems.
//
// Usage: typecheck OS/ARCH[,OS/ARCH...] DIR...
//
// It checks the types of all packages, including tests, of the modules in a directory's workspace,
// or, with GOWORK=off, only of its module. From other modules it needs only the declarations, and
// it compiles nothing. So it takes seconds, while go vet would first compile all of Kubernetes'
// client for each system.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: typecheck OS/ARCH[,OS/ARCH...] DIR...")
		os.Exit(2)
	}

	failed := false
	for target := range strings.SplitSeq(os.Args[1], ",") {
		for _, dir := range os.Args[2:] {
			for _, err := range check(target, dir) {
				fmt.Printf("%s %s: %v\n", target, dir, err)
				failed = true
			}
		}
	}

	if failed {
		os.Exit(1)
	}
}

// listed is a package in the output of "go list -json".
type listed struct {
	ImportPath, Dir, Name string
	GoFiles               []string
	ImportMap             map[string]string
	Module                *struct{ Main bool }
}

// check returns the errors on a target in the packages of the modules of dir.
func check(target, dir string) []error {
	system, arch, _ := strings.Cut(target, "/")
	cmd := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,Name,GoFiles,"+
		"ImportMap,Module", "work")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return []error{fmt.Errorf("go list: %w: %s", err, stderr.Bytes())}
	}
	checked := map[string]*types.Package{"unsafe": types.Unsafe}
	var errs []error
	for dec := json.NewDecoder(bytes.NewReader(out)); ; { // dependencies come first
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return errs
		} else if err != nil {
			return append(errs, fmt.Errorf("go list: %w", err))
		}

		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue // without source, or made by go test
		}
		ours := p.Module != nil && p.Module.Main
		pkg, wrong := p.check(checked, ours, types.SizesFor("gc", arch))
		checked[p.ImportPath] = pkg
		if ours {
			errs = append(errs, wrong...)
		}
	}
}

// check checks one package, with the packages that it imports. Without bodies it checks only the
// declarations, which then seem not to use some imports.
func (p *listed) check(imported map[string]*types.Package, bodies bool, sizes types.Sizes) (
	*types.Package, []error) {
	var errs []error
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil,
			parser.SkipObjectResolution)
		if err != nil {
			errs = append(errs, err)
			continue
		}

		files = append(files, f)
	}

	cfg := types.Config{
		Importer: importer(func(path string) (*types.Package, error) {
			if mapped, ok := p.ImportMap[path]; ok {
				path = mapped
			}
			if pkg := imported[path]; pkg != nil {
				return pkg, nil
			}
			return nil, fmt.Errorf("no package %s", path)
		}),
		IgnoreFuncBodies: !bodies, FakeImportC: true, Sizes: sizes,
		Error: func(err error) { errs = append(errs, err) },
	}
	path, _, _ := strings.Cut(p.ImportPath, " ")
	pkg, _ := cfg.Check(path, fset, files, nil) // Error has its errors
	return pkg, errs
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
