package vmtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// guestSource is the path of the module's tree in the guest.
const guestSource = "/src"

// targetEnv is for building binaries that run in the guest without any library.
var targetEnv = []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64"}

// BuildOptions select the test binaries for [Build].
type BuildOptions struct {
	// Dir is a directory inside the module; "" is the current one.
	Dir string
	// Packages are patterns as for go test, relative to Dir.
	Packages []string
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
		if _, err := goCommand(ctx, o.Dir, "test", "-c", "-ldflags=-w", "-o", file,
			p.ImportPath); err != nil {
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

// goPackage is a package in the output of "go list -json".
type goPackage struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Module                             *struct{ Dir string }
}

func listPackages(ctx context.Context, o BuildOptions) ([]goPackage, error) {
	args := []string{"list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles,Module"}
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

	// A test may read the files in its directory, such as documentation that it compares with the
	// code.
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

// goCommand runs the go command for the guest and returns its standard output. The error has the
// text of its standard error.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	path, err := findProgram("go", "golang-go")
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.Env = append(os.Environ(), targetEnv...)
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
		return "", fmt.Errorf("go %s: %w%s", args[0], err, indent(stderr.String()))
	}

	return stdout.String(), nil
}

// findProgram returns the path of a program, or an [ErrMissing] that names its Debian package.
func findProgram(name, debian string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: the program %s (Debian package %s)", ErrMissing, name, debian)
	}
	return filepath.Abs(path)
}

// indent puts a program's message on lines of its own below the error.
func indent(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	return "\n\t" + strings.ReplaceAll(text, "\n", "\n\t")
}
