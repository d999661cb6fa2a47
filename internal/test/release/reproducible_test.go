package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBuildsAreReproducible builds a program from two copies of the tree in different directories,
// the second time without a build cache.
func TestBuildsAreReproducible(t *testing.T) {
	t.Parallel()
	if testing.Short() || os.Getenv("KERNLB_TEST_FETCH") == "none" {
		t.Skip("compiles the standard library: make test-all does")
	}
	const program = "examples/publish"
	names := strings.Fields(run(t, root, nil, "git", "ls-files", "*.go", "*go.mod", "*go.sum"))
	built := func(env ...string) string {
		tree := filepath.Join(t.TempDir(), "clone")
		for _, name := range names {
			if text, err := os.ReadFile(filepath.Join(root, name)); err == nil { // not deleted
				write(t, filepath.Join(tree, name), string(text))
			}
		}

		run(t, filepath.Join(tree, program), append(env, "CGO_ENABLED=0", "GOWORK=off"),
			"go", "build", "-trimpath", "-buildvcs=false", "-o", "built", ".")
		return read(t, filepath.Join(tree, program, "built"))
	}

	first, second := built(), built("GOCACHE="+t.TempDir())
	require.Greater(t, len(first), 1<<20)
	require.True(t, first == second, "the two programs differ")
}
