package keepalived_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/examples/loadbalancer/keepalived"
)

var update = flag.Bool("update", false, "write the golden files")

// report is all that a conversion says.
func report(name, text string) string {
	r, err := keepalived.Convert(name, text)
	var b strings.Builder
	for _, w := range r.Warnings {
		fmt.Fprintln(&b, "# warning:", w)
	}
	for _, w := range r.Changes {
		fmt.Fprintln(&b, "# changed:", w)
	}
	if err != nil {
		for line := range strings.Lines(err.Error() + "\n") {
			b.WriteString("# error: " + line)
		}
	}
	b.Write(r.File)
	return b.String()
}

func TestConversionsAreAsExpected(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.conf")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		golden := strings.TrimSuffix(name, ".conf") + ".golden"
		got := report(filepath.Base(name), string(text))
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		assert.Equal(t, string(want), got, name)
	}
}

// What is converted can be loaded, and nothing breaks the parser.
func FuzzConvert(f *testing.F) {
	files, err := filepath.Glob("testdata/*.conf")
	require.NoError(f, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := keepalived.Convert("f", text)
		if err != nil {
			return
		}
		_, err = config.Parse("f", r.File)
		require.NoError(t, err)
	})
}
