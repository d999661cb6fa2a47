package version_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/counts"
)

// Every installed program prints its help and its version to standard output and nothing else, even
// without a kernel mechanism and without an API server.
func TestEveryProgramHasHelpAndAVersion(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds eight programs")
	}
	bin, rows := t.TempDir(), []counts.Row(nil)
	for _, dir := range []string{"kernlb", "kernlb/kernlb-top", "userspace", "cni", "loadbalancer",
		"nodeproxy", "kubeproxy", "balancer"} {
		program := filepath.Base(dir)
		path := filepath.Join(bin, program)
		build := exec.Command("go", "build", "-o", path, ".")
		build.Dir = filepath.Join("..", "..", dir)
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
		if program != "cni" { // which has no flags
			refusesArguments(t, path)
		}
		rows = append(rows, counts.Row{Name: "start: " + program,
			Cost: initialized(t, path)})
		if program == "balancer" { // which has no version
			continue
		}
		for arg, want := range map[string]string{"-h": "", "--help": "", "version": "go1.",
			"--version": "go1."} {
			var stdout, stderr bytes.Buffer
			cmd := exec.Command(path, arg)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			require.NoError(t, cmd.Run(), "%s %s: %s", program, arg, &stderr)
			require.Empty(t, stderr.String(), "%s %s", program, arg)
			require.Contains(t, stdout.String(), want)
			if want == "" {
				help := strings.ToLower(stdout.String())
				require.True(t, strings.Contains(help, "usage") || program == "cni", help)
				require.Contains(t, help, "version", program)
			}
		}
	}

	t.Run("counts", func(t *testing.T) { counts.Compare(t, "start", rows) })
}

// initialized returns the allocations of a program before it begins: the minimum of ten starts,
// because maps grow at random.
func initialized(t *testing.T, path string) (least counts.Cost) {
	t.Helper()
	for range 10 {
		var trace bytes.Buffer
		cmd := exec.Command(path, "-h")
		cmd.Env, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH"), "GODEBUG=inittrace=1"}, &trace
		require.NoError(t, cmd.Run(), "%s", &trace)
		var c counts.Cost
		for line := range strings.Lines(trace.String()) {
			var name string
			var at, took, size, objects float64
			if n, _ := fmt.Sscanf(line, "init %s @%f ms, %f ms clock, %f bytes, %f allocs", &name,
				&at, &took, &size, &objects); n == 5 {
				c.Bytes, c.Allocations = c.Bytes+size, c.Allocations+objects
			}
		}

		require.NotZero(t, c, "%s", &trace)
		if least == (counts.Cost{}) || c.Bytes < least.Bytes {
			least = c
		}
	}

	return least
}

// refusesArguments requires that a program refuses an unknown argument.
func refusesArguments(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "stray").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `"stray"`)
}
