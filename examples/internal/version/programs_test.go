package version_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every program that is installed prints its help and its version to standard output, with nothing
// beside it, also where no kernel mechanism and no API server is.
func TestEveryProgramHasHelpAndAVersion(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds seven programs")
	}
	bin := t.TempDir()
	for _, program := range []string{"kernlb", "kernlb-top", "userspace", "cni", "loadbalancer",
		"nodeproxy", "kubeproxy"} {
		path := filepath.Join(bin, program)
		build := exec.Command("go", "build", "-o", path, ".")
		build.Dir = filepath.Join("..", "..", program)
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
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
}
