package adopters

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
)

// docs/adopters.md has the measured difference between a program with the import and a program
// without.
func TestWhatAnImportCosts(t *testing.T) {
	t.Parallel()
	text := string(must.OK(os.ReadFile("../../../docs/adopters.md"))(t))
	row := func(what string) string {
		m := regexp.MustCompile(`(?m)^\| ` + what + ` \| (.*) \|$`).FindStringSubmatch(text)
		require.NotNil(t, m, what)
		return m[1]
	}

	var modules []string
	out := must.OK(exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		"{{with .Module}}{{if not .Main}}`{{.Path}}`{{end}}{{end}}", "./testdata/with").Output())(t)
	for m := range strings.FieldsSeq(string(out)) {
		modules = append(modules, m)
	}
	slices.Sort(modules)
	require.Equal(t, strings.Join(slices.Compact(modules), ", "), row("modules besides kernlb"))

	built := map[string]string{}
	size := map[string]float64{}
	for _, name := range []string{"with", "without"} {
		built[name] = filepath.Join(t.TempDir(), name)
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w",
			"-o", built[name], "./testdata/"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		said, err := build.CombinedOutput()
		require.NoError(t, err, string(said))
		size[name] = float64(must.OK(os.Stat(built[name]))(t).Size()) / 1e6
	}

	grown := must.OK(strconv.ParseFloat(strings.Fields(row("the program grows by"))[0], 64))(t)
	require.InDelta(t, grown, size["with"]-size["without"], 0.2, "MB: %v", size)

	c := netnstest.Start(t, netnstest.Options{})
	took := func(name string) time.Duration {
		least := time.Hour
		for range 10 {
			require.NoError(t, c.Node.NS.Do(func() error {
				begun := time.Now()
				out, err := exec.CommandContext(t.Context(), built[name]).CombinedOutput()
				least = min(least, time.Since(begun))
				if err != nil {
					err = fmt.Errorf("%w: %s", err, out)
				}
				return err
			}))
		}

		return least
	}

	t.Logf("least of ten starts: without %v, with %v", took("without"), took("with"))
}
