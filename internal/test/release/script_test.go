package release

import (
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ready is a small repository from which v0.1.1 can be released after v0.1.0.
var ready = map[string]string{
	"CHANGELOG.md": "# Changelog\n\n## v0.1.1\n\n- A mend.\n\n## v0.1.0\n",
	"README.md":    "# kernlb\n",
	"go.mod":       "module " + kernlb + "\n\ngo 1.26.0\n",
	"kernlb.go":    "package kernlb\n\nconst Old = 1\n",
	"dataplane/metrics/go.mod": "module " + kernlb + "/dataplane/metrics\n\ngo 1.26.0\n\nrequire " +
		kernlb + " v0.1.1\n\nreplace " + kernlb + " => ../..\n",
	"dataplane/metrics/metrics.go": "package metrics\n\nimport \"" + kernlb +
		"\"\n\nconst Old = kernlb.Old\n",
	"servicemodel/kube/kubeapi/go.mod":       "module " + kernlb + "/servicemodel/kube/kubeapi\n",
	"servicemodel/kube/kubeapi/kubeapi.go":   "package kubeapi\n",
	"internal/test/architecture/any_test.go": "package architecture\n",
	"internal/test/release/any_test.go":      "package release\n",
}

func TestReleaseIsCheckedAndPrinted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("nothing of it concerns the race detector")
	}
	commands := func(version string) string {
		return "git tag -a -m 'kernlb " + version + "' " + version + "\n" +
			"git tag -a -m 'kernlb " + version + "' dataplane/metrics/" + version + "\n" +
			"git tag -a -m 'kernlb " + version + "' servicemodel/kube/kubeapi/" + version + "\n" +
			"git push --atomic origin HEAD:main " + version + " dataplane/metrics/" + version +
			" servicemodel/kube/kubeapi/" + version + "\n"
	}
	metricsMod := func(old, changed string) map[string]string {
		const name = "dataplane/metrics/go.mod"
		return map[string]string{name: strings.ReplaceAll(ready[name], old, changed)}
	}
	broken := map[string]string{"dataplane/metrics/metrics.go": "package metrics\n"}
	minor := metricsMod("v0.1.1", "v0.2.0")
	maps.Copy(minor, broken)
	minor["CHANGELOG.md"] = "## v0.2.0\n"
	for name, test := range map[string]struct {
		version string            // v0.1.1 if empty
		changed map[string]string // files that differ from ready
		dirty   bool              // they are not committed
		want    string            // a part of the output
		fails   bool
	}{
		"ready":        {want: commands("v0.1.1")},
		"no version":   {version: "1.0", want: "must be like VERSION=v0.1.0", fails: true},
		"older":        {version: "v0.0.9", want: "the last release is v0.1.0", fails: true},
		"made already": {version: "v0.1.0", want: "the last release is v0.1.0", fails: true},
		"uncommitted": {changed: map[string]string{"new.go": "package kernlb\n"}, dirty: true,
			want: "uncommitted", fails: true},
		"no section": {changed: map[string]string{"CHANGELOG.md": "## Unreleased\n"},
			want: "rename its section Unreleased to '## v0.1.1'", fails: true},
		"a document from before": {changed: map[string]string{"README.md": "no release yet\n"},
			want: "there is no release: README.md", fails: true},
		"required otherwise": {changed: metricsMod("v0.1.1", "v0.0.0"),
			want: "v0.1.1#' dataplane/metrics/go.mod", fails: true},
		"replaced from outside": {changed: metricsMod("../..", "../../../other"),
			want: "replaces a module by ../../../other", fails: true},
		"a test fails": {changed: map[string]string{
			"internal/test/architecture/any_test.go": "package architecture\n\n" +
				"import \"testing\"\n\nfunc Test(t *testing.T) { t.Fail() }\n",
		}, want: "FAIL", fails: true},
		"a patch breaks programs": {changed: broken, want: "programs for v0.1.0 may not compile",
			fails: true},
		"a minor version breaks programs": {version: "v0.2.0", changed: minor,
			want: kernlb + "/dataplane/metrics:\n- Old: removed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			files := maps.Clone(ready)
			files[".ci/release"] = read(t, filepath.Join(root, ".ci/release"))
			for name, text := range files {
				write(t, filepath.Join(dir, name), text)
			}
			git(t, dir, "init", "-q")
			git(t, dir, "add", ".")
			git(t, dir, "commit", "-q", "-m", "the last release")
			git(t, dir, "tag", "v0.1.0")
			for name, text := range test.changed {
				write(t, filepath.Join(dir, name), text)
			}
			if !test.dirty {
				git(t, dir, "add", ".")
				git(t, dir, "commit", "-q", "--allow-empty", "-m", "changes")
			}
			if test.version == "" {
				test.version = "v0.1.1"
			}
			cmd := exec.CommandContext(t.Context(), "bash", ".ci/release", test.version)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			require.Equal(t, test.fails, err != nil, "%s", out)
			require.Contains(t, string(out), test.want)
			require.Equal(t, !test.fails, strings.HasSuffix(string(out), commands(test.version)),
				"the commands are printed only if all is well: %s", out)
		})
	}
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	run(t, dir, []string{
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=kernlb", "GIT_AUTHOR_EMAIL=kernlb@localhost",
		"GIT_COMMITTER_NAME=kernlb", "GIT_COMMITTER_EMAIL=kernlb@localhost",
	}, "git", args...)
}
