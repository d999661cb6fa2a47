package keepalived_test

import (
	"cmp"
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
	"github.com/kernlb/kernlb/internal/test/must"
)

var update = flag.Bool("update", false, "write the golden files")

// report is all that a conversion says.
func report(name, text string) string { return reportAs(name, text, nil) }

func reportAs(name, text string, how *keepalived.Config) string {
	r, err := keepalived.Convert(name, text, how)
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

// The configurations in public have the form of configurations that are published in articles,
// repositories and questions. A first line "# convert -i ID" contains the ID.
func TestConversionsAreAsExpected(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"testdata", "testdata/public"} {
		files := must.OK(filepath.Glob(dir + "/*.conf"))(t)
		require.NotEmpty(t, files)
		for _, name := range files {
			text := string(must.OK(os.ReadFile(name))(t))
			first, _, _ := strings.Cut(text, "\n")
			id, _ := strings.CutPrefix(first, "# convert -i ")
			if id == first {
				id = ""
			}
			got := reportAs(name, text, &keepalived.Config{ID: id, Include: true})
			golden(t, strings.TrimSuffix(name, ".conf")+".golden",
				strings.ReplaceAll(got, dir+"/", ""))
		}
	}
}

// golden compares a text with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(got), 0o644))
	}
	assert.Equal(t, string(must.OK(os.ReadFile(name))(t)), got, name)
}

// The samples of keepalived's own package are not copied here; samples.golden has the result for
// each sample.
func TestSamplesOfKeepalived(t *testing.T) {
	t.Parallel()
	dir := cmp.Or(os.Getenv("KEEPALIVED_SAMPLES"), "/usr/share/doc/keepalived/samples")
	files := must.OK(filepath.Glob(dir + "/keepalived.conf.*"))(t)
	if len(files) == 0 {
		t.Skip("keepalived is not installed")
	}
	var got strings.Builder
	for _, name := range files {
		text := string(must.OK(os.ReadFile(name))(t))
		base := strings.TrimPrefix(filepath.Base(name), "keepalived.conf.")
		fmt.Fprintf(&got, "=== %s\n%s", base, report(base, text))
	}

	golden(t, "testdata/samples.golden", got.String())
}

// The result of a conversion can be loaded, and nothing breaks the parser.
func FuzzConvert(f *testing.F) {
	files, err := filepath.Glob("testdata/*.conf")
	require.NoError(f, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(string(text))
	}

	f.Fuzz(func(t *testing.T, text string) {
		r, err := keepalived.Convert("f", text, nil)
		if err != nil {
			return
		}
		_, err = config.Parse("f", r.File)
		require.NoError(t, err)
	})
}
