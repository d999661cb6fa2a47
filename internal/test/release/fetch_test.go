// Package release tests .ci/release, and builds a program from published modules.
package release

import (
	"archive/zip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

const (
	root   = "../../.."
	kernlb = "github.com/kernlb/kernlb"
)

// published are the directories of the modules that have tags.
var published = []string{"", "dataplane/metrics", "servicemodel/kube/kubeapi"}

// TestModulesAreFetchedWithoutAClone fetches the published modules into an empty directory, at the
// version that the nested modules require, and builds the program of the README there. The modules
// of this tree come from a file-based module proxy, and other modules from the module cache.
func TestModulesAreFetchedWithoutAClone(t *testing.T) {
	t.Parallel()
	if testing.Short() || os.Getenv("KERNLB_TEST_FETCH") == "none" {
		t.Skip("builds client-go, which takes minutes the first time: make test-all does")
	}
	proxy, program := t.TempDir(), t.TempDir()
	version := required(t, published[1])
	get := []string{"get"}
	for _, dir := range published {
		if dir != "" {
			require.Equal(t, version, required(t, dir), "the version of kernlb in %s", dir)
		}
		serve(t, proxy, dir, version)
		get = append(get, module(dir)+"@"+version)
	}

	code := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(
		read(t, filepath.Join(root, "README.md")))
	require.NotNil(t, code, "the README has a program")

	cache := strings.TrimSpace(run(t, root, nil, "go", "env", "GOMODCACHE"))
	upstream := strings.TrimSpace(run(t, root, nil, "go", "env", "GOPROXY"))
	env := []string{
		"GOPROXY=file://" + proxy + ",file://" + cache + "/cache/download," + upstream,
		"GOMODCACHE=" + t.TempDir(), "GOFLAGS=-mod=mod -modcacherw -trimpath", "GOWORK=off",
		"GONOSUMDB=*", "GOPRIVATE=", "GONOPROXY=none",
	}
	run(t, program, env, "go", "mod", "init", "example.org/program")
	run(t, program, env, "go", get...)
	write(t, filepath.Join(program, "main.go"), `package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/metrics"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube/kubeapi"
)

func balance(ctx context.Context) error {
	`+code[1]+`
	_, _, _ = result, kubeapi.New, metrics.New(engine, nil)
	return err
}

func main() {
	_ = balance
	fmt.Println("built")
}
`)
	require.Equal(t, "built\n", run(t, program, env, "go", "run", "."))
}

// required returns the version of kernlb that a nested module requires.
func required(t *testing.T, dir string) string {
	t.Helper()
	line := regexp.MustCompile(`(?m)^\s*(?:require )?` + kernlb + ` (v\S+)$`)
	found := line.FindStringSubmatch(read(t, filepath.Join(root, dir, "go.mod")))
	require.NotNil(t, found, "%s requires kernlb", dir)
	return found[1]
}

func module(dir string) string { return strings.TrimSuffix(kernlb+"/"+dir, "/") }

// serve writes the files that a module proxy has of the module in dir.
func serve(t *testing.T, proxy, dir, version string) {
	t.Helper()
	at := filepath.Join(proxy, module(dir), "@v", version)
	info := must.OK(json.Marshal(map[string]string{"Version": version}))(t)
	write(t, at+".info", string(info))
	write(t, at+".mod", read(t, filepath.Join(root, dir, "go.mod")))
	file := must.OK(os.Create(at + ".zip"))(t)
	archive := zip.NewWriter(file)
	for _, name := range contents(t, dir) {
		entry := must.OK(archive.Create(module(dir) + "@" + version + "/" + name))(t)
		must.OK(io.WriteString(entry, read(t, filepath.Join(root, dir, name))))(t)
	}

	require.NoError(t, archive.Close())
	require.NoError(t, file.Close())
}

// contents returns the names of a module's files, without the files of modules below it.
func contents(t *testing.T, dir string) []string {
	t.Helper()
	names := strings.Fields(run(t, filepath.Join(root, dir), nil,
		"git", "ls-files", "--cached", "--others", "--exclude-standard"))
	var below, out []string
	for _, name := range names {
		if nested, found := strings.CutSuffix(name, "/go.mod"); found {
			below = append(below, nested+"/")
		}
	}

next:
	for _, name := range names {
		for _, nested := range below {
			if strings.HasPrefix(name, nested) {
				continue next
			}
		}

		if _, err := os.Stat(filepath.Join(root, dir, name)); err == nil { // not deleted
			out = append(out, name)
		}
	}
	return out
}

func read(t *testing.T, name string) string {
	t.Helper()
	text := must.OK(os.ReadFile(name))(t)
	return string(text)
}

func write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
}

// run runs a command in a directory, with additional environment variables.
func run(t *testing.T, dir string, env []string, command string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s: %s", command, strings.Join(args, " "), stderr.String())
	return string(out)
}
