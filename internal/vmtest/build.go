package vmtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// guestSource is where the module's tree is in the guest.
const guestSource = "/src"

// targetEnv makes binaries that run in the guest without any library.
var targetEnv = []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64"}

// BuildOptions say which test binaries [Build] makes.
type BuildOptions struct {
	// Dir is a directory inside the module; "" is the current one.
	Dir string
	// Packages are patterns as for go test, relative to Dir.
	Packages []string
	// Flags are further flags for "go test -c", such as -tags or -cover.
	Flags []string
	// Out is an existing directory for the binaries. They have to stay there until
	// [Run] has returned.
	Out string
}

// Build compiles the test binary of each package. In the guest a package is at
// the same place below /src as in its module, with its Go files and its testdata
// directory, and its directory is the working directory, as under go test. Packages
// without tests are left out. The error wraps [ErrMissing] when there is no go command.
func Build(ctx context.Context, o BuildOptions) ([]Program, error) {
	packages, err := listPackages(ctx, o)
	if err != nil {
		return nil, err
	}
	var out []Program
	for i, p := range packages {
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		file := filepath.Join(o.Out, fmt.Sprintf("%d.test", i))
		args := append([]string{"test", "-c", "-ldflags=-w", "-o", file}, o.Flags...)
		if _, err := goCommand(ctx, o.Dir, append(args, p.ImportPath)...); err != nil {
			return nil, fmt.Errorf("build the tests of %s: %w", p.ImportPath, err)
		}
		program, err := p.program(file)
		if err != nil {
			return nil, err
		}
		out = append(out, program)
	}
	return out, nil
}

// goPackage is what "go list -json" tells.
type goPackage struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Module                             *struct{ Dir string }
}

func listPackages(ctx context.Context, o BuildOptions) ([]goPackage, error) {
	args := []string{"list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles,Module"}
	// Build flags such as -tags decide which packages and files there are; flags of
	// go test alone are unknown to go list.
	for _, f := range o.Flags {
		if strings.HasPrefix(f, "-tags=") {
			args = append(args, f)
		}
	}
	text, err := goCommand(ctx, o.Dir, append(append(args, "--"), o.Packages...)...)
	if err != nil {
		return nil, fmt.Errorf("list packages %q: %w", o.Packages, err)
	}
	var out []goPackage
	for dec := json.NewDecoder(strings.NewReader(text)); ; {
		var p goPackage
		err := dec.Decode(&p)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list packages %q: %w", o.Packages, err)
		}
		out = append(out, p)
	}
}

func (p goPackage) program(file string) (Program, error) {
	if p.Module == nil {
		return Program{}, fmt.Errorf("package %s is in no module", p.ImportPath)
	}
	rel, err := filepath.Rel(p.Module.Dir, p.Dir)
	if err != nil {
		return Program{}, fmt.Errorf("place package %s in the guest: %w", p.ImportPath, err)
	}
	dir := path.Join(guestSource, filepath.ToSlash(rel))
	program := Program{Name: p.ImportPath, Path: file, Dir: dir, Files: map[string]string{}}
	// A test may read the files beside it, such as a documentation that it holds against the code.
	for _, f := range p.GoFiles {
		program.Files[path.Join(dir, f)] = filepath.Join(p.Dir, f)
	}
	testdata := filepath.Join(p.Dir, "testdata")
	if _, err := os.Stat(testdata); err == nil {
		program.Files[path.Join(dir, "testdata")] = testdata
	} else if !errors.Is(err, os.ErrNotExist) {
		return Program{}, fmt.Errorf("look for testdata of %s: %w", p.ImportPath, err)
	}
	return program, nil
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	return command{Name: "go", Args: args, Dir: dir, Env: targetEnv}.output(ctx)
}
