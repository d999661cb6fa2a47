package architecture

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/must"
)

// surface is the page that lists the exported identifiers by task.
const surface = root + "/docs/api.md"

// A task is a section of the page. It lists packages, or files of packages, whose identifiers serve
// the task. If several tasks name a file or its package, the file belongs to the first task.
type task struct {
	title, what string
	of          []string
}

var tasks = []task{
	{"Describe services", "A program declares a state, and derives the next one from the last.",
		[]string{"servicemodel/state.go", "servicemodel/service.go", "servicemodel/node.go",
			"servicemodel/names.go", "servicemodel/connections.go", "servicemodel/validate.go",
			"servicemodel/text.go", "dataplane/nodeaddrs"}},
	{"Take services from Kubernetes", "From its objects, or from files with manifests.",
		[]string{"servicemodel/kube", "servicemodel/kube/manifest"}},
	{"Choose and open a backend", "",
		[]string{"dataplane/probe.go", "nftables", "iptables", "ipvs", "dataplane/netns"}},
	{"Apply services, and run in the background", "The engine holds what was wanted last.",
		[]string{"dataplane/engine.go", "dataplane/run.go", "dataplane/apply.go",
			"dataplane/switch.go", "dataplane/status.go", "dataplane/refuse.go",
			"dataplane/errors.go", "dataplane/event.go", "dataplane/phase.go", "dataplane",
			"dataplane/kernelerr"}},
	{"Parts for CNI plugins", "Programs that share an instance, and live for one change.",
		[]string{"dataplane/part.go", "dataplane/part_change.go"}},
	{"Check endpoints", "Whether they work, and states that follow.",
		[]string{"dataplane/checks", "dataplane/silence", "dataplane/leastconn"}},
	{"Deal with connections", "Flows of conntrack, when endpoints go.",
		[]string{"dataplane/flows", "conntrack", "conntrack/tuning", "conntrack/timo"}},
	{"Look at it", "Why a packet goes where it goes, and what an engine does.",
		[]string{"servicemodel/oracle.go", "servicemodel/trace.go", "servicemodel/cause.go",
			"servicemodel/selection.go", "dataplane/page", "dataplane/health",
			"dataplane/node", "dataplane/diagnose",
			"dataplane/counters", "dataplane/graph", "dataplane/hooks", "dataplane/livetrace"}},
	{"Take over from kube-proxy", "", []string{"dataplane/kubeproxy"}},
	{"Test with it", "With packets, or without a kernel.",
		[]string{"dataplane/memory", "dataplane/netnstest", "dataplane/dataplanetest",
			"dataplane/dataplanetest/scenario"}},
	{"Write a backend", "Tables, change sets, and what an engine asks of a backend.",
		[]string{"dataplane/backends", "dataplane/sysctls",
			"servicemodel"}},
}

// taskOf returns the index of the first task that names a file or a package.
func taskOf(name string) int {
	return slices.IndexFunc(tasks, func(t task) bool { return slices.Contains(t.of, name) })
}

// identifier is an exported function, type, method, constant or variable.
type identifier struct {
	name, synopsis string
	file           string // with the path of its package
}

// identifiers returns the identifiers of a package. Names without a comment share the comment of
// their declaration.
func identifiers(t *testing.T, p *build.Package) (out []identifier) {
	t.Helper()
	set, d := documented(t, p, parser.ParseComments)
	add := func(name string, at token.Pos, comments ...string) {
		synopsis := new(doc.Package).Synopsis(cmp.Or(comments...))
		out = append(out, identifier{name, synopsis,
			p.ImportPath + "/" + filepath.Base(set.Position(at).Filename)})
	}

	walk(d, func(l []*doc.Value) {
		for _, v := range l {
			for _, spec := range v.Decl.Specs {
				s := spec.(*ast.ValueSpec)
				for _, name := range s.Names {
					if name.IsExported() {
						add(name.Name, name.Pos(), s.Doc.Text(), s.Comment.Text(), v.Doc)
					}
				}
			}
		}
	}, func(l []*doc.Func, prefix string) {
		for _, f := range l {
			add(prefix+f.Name, f.Decl.Pos(), f.Doc)
		}
	}, func(typ *doc.Type) {
		spec := typ.Decl.Specs[0].(*ast.TypeSpec)
		add(typ.Name, typ.Decl.Pos(), typ.Doc, spec.Comment.Text())
	})

	return out
}

// public returns the packages that users may import.
func public(t *testing.T) []*build.Package {
	t.Helper()
	return slices.DeleteFunc(packages(t, "linux"), func(p *build.Package) bool {
		return p.Name == "main" || strings.Contains("/"+p.ImportPath+"/", "/internal/")
	})
}

// TestTheSurfaceIsListed requires that docs/api.md is up to date; -update writes it.
func TestTheSurfaceIsListed(t *testing.T) {
	t.Parallel()
	sections := make([]strings.Builder, len(tasks))
	for _, p := range public(t) {
		all := identifiers(t, p)
		declared := map[string]string{} // the file of each type
		for _, id := range all {
			declared[id.name] = id.file
		}
		of := make([][]identifier, len(tasks))
		for _, id := range all {
			if owner, _, method := strings.Cut(id.name, "."); method {
				id.file = declared[owner]
			}
			i := taskOf(id.file)
			if i < 0 {
				i = taskOf(p.ImportPath)
			}
			require.GreaterOrEqual(t, i, 0, "no task lists %s: add it to tasks", id.file)
			of[i] = append(of[i], id)
		}

		for i, ids := range of {
			list(&sections[i], p.ImportPath, ids)
		}
	}

	var page strings.Builder
	page.WriteString("# The API by task\n\n" +
		"All exported identifiers of the module, by the task that they serve.\n" +
		"`go test ./internal/test/architecture -update` writes this page.\n")
	for i, task := range tasks {
		fmt.Fprintf(&page, "\n## %s\n", task.title)
		if task.what != "" {
			fmt.Fprintf(&page, "\n%s\n", task.what)
		}
		page.WriteString(sections[i].String())
	}

	golden.File(t, surface, page.String())
}

// The output of "go doc dataplane", which a user of engines reads first, fits on two screens.
func TestTheFirstPageOfTheEngineIsShort(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "doc", "./dataplane")
	cmd.Dir = root
	page := string(must.OK(cmd.Output())(t))
	require.Contains(t, page, "type Engine struct")
	require.LessOrEqual(t, strings.Count(page, "\n"), 100)
}

// list writes the table of a package's identifiers, sorted by name: methods stand below types.
func list(b *strings.Builder, path string, ids []identifier) {
	if len(ids) == 0 {
		return
	}
	slices.SortFunc(ids, func(x, y identifier) int { return strings.Compare(x.name, y.name) })
	fmt.Fprintf(b, "\n| `%s` | |\n|---|---|\n", path)
	for _, id := range ids {
		fmt.Fprintf(b, "| `%s` | %s |\n", id.name, strings.ReplaceAll(id.synopsis, "|", `\|`))
	}
}
