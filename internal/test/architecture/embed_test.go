package architecture

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A program that embeds an engine and the nftables backend imports nothing that it does not use: no
// metrics, page or health, no HTTP, and only two small libraries of other authors.
func TestAnEmbeddedEngineIsLight(t *testing.T) {
	t.Parallel()
	imports := map[string][]string{}
	for _, p := range packages(t, "linux") {
		imports[p.ImportPath] = p.Imports
	}
	var got []string
	seen := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		if seen[path] {
			return
		}
		seen[path] = true
		own, ours := strings.CutPrefix(path, module)
		first, _, _ := strings.Cut(path, "/")
		switch {
		case ours:
			require.Contains(t, imports, own)
			for _, next := range imports[own] {
				visit(next)
			}
			if strings.Contains("/"+own, "/internal/") {
				return
			}
		case !strings.Contains(first, ".") && first != "net" && first != "html" && first != "os":
			return // of the standard library
		}

		got = append(got, strings.TrimPrefix(path, module))
	}

	visit(module + "nftables")
	visit(module + "dataplane")
	require.ElementsMatch(t, []string{"dataplane", "dataplane/backends", "dataplane/kernelerr",
		"dataplane/netns", "dataplane/sysctls", "nftables", "servicemodel",
		"github.com/mdlayher/netlink", "golang.org/x/net/bpf", "golang.org/x/sys/unix", "net/netip",
		"os"}, got) // netlink needs bpf, too

	for _, other := range []string{"iptables", "ipvs", "conntrack", "dataplane/flows"} {
		visit(module + other)
	}
	require.NotContains(t, strings.Join(got, "\n"), "k8s.io/", "no backend needs Kubernetes")
}
