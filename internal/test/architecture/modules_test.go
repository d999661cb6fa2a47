package architecture

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

var (
	used     = regexp.MustCompile(`(?m)^\t\./?(.*)$`)
	required = regexp.MustCompile(`(?m)^(?:require )?\s*(\S+) (v\d\S+)(?: // indirect)?$`)
)

// The modules in go.work are built and tested together, with one version of each required module.
// Each module requires that version, so a program that imports a module gets the tested versions.
// Modules that build Kubernetes itself are not in go.work, because they would raise versions.
func TestModulesRequireWhatTheyAreTestedWith(t *testing.T) {
	t.Parallel()
	work := must.OK(filepath.Abs(root + "/go.work"))(t)
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f",
		"{{.Path}} {{.Version}}", "all")
	list.Env = append(os.Environ(), "GOWORK="+work, "GOFLAGS=")
	selected := string(must.OK(list.Output())(t))

	together := map[string]bool{}
	for _, m := range used.FindAllStringSubmatch(string(must.OK(os.ReadFile(work))(t)), -1) {
		together[strings.TrimPrefix(m[1]+"/go.mod", "/")] = true
	}
	for name, text := range files(t, "go.mod") {
		require.Equal(t, !strings.Contains(text, "\tk8s.io/kubernetes v"), together[name],
			"go.work has the modules that do not require Kubernetes itself: %s", name)
		for _, m := range required.FindAllStringSubmatch(text, -1) {
			if together[name] && !strings.HasPrefix(m[1]+"/", module) {
				require.Contains(t, selected, m[1]+" "+m[2]+"\n",
					"%s: go work sync, and then go mod tidy in each module", name)
			}
		}
	}
}
