package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "make the drawings in docs anew")

// firewall is what another program has beside kernlb.
const firewall = `
table inet firewall {
	chain forward {
		type filter hook forward priority 0; policy drop;
		ct state established,related accept
		jump pods
	}
	chain pods {
		tcp dport 8080 accept
		counter drop comment "only 8080"
	}
	chain input {
		type filter hook input priority 10;
	}
}
`

// The drawings in docs/graph.md are what the command draws of a kernel today.
func TestDrawingsInTheDocumentsAreNew(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	if _, err := os.Stat("../../docs"); err != nil {
		t.Skip("the documents are not beside the test: needs no virtual machine")
	}
	shop := strings.Replace(serviceManifest("shop", "10.96.0.2", "", ""), "ready: true",
		"ready: false", 1)
	file := filepath.Join(t.TempDir(), "services.yaml")
	require.NoError(t, os.WriteFile(file, []byte(localWeb()+shop), 0o600))
	code, _, errs := kernlb(t, ns, "apply", "-f", file, "-node", "n1", "-node-ip", "192.0.2.1")
	require.Equal(t, exitDone, code, errs)
	require.NoError(t, ns.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(firewall)
		return cmd.Run()
	}))
	for name, args := range map[string][]string{
		"services": {"-f", file, "-node", "n1", "-node-ip", "192.0.2.1"},
		"hooks":    {"-hooks", "IPv4"},
	} {
		code, got, errs := kernlb(t, ns, append([]string{"graph", "-format", "svg"}, args...)...)
		require.Equal(t, exitDone, code, errs)
		path := "../../docs/graph-" + name + ".svg"
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), got, "go test ./examples/kernlb -run Drawings -update")
	}
	code, got, errs := kernlb(t, ns, "graph", "-service", "default/shop")
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, got, "no endpoint can be used", "the kernel does not say why")
	require.NotContains(t, got, "default/web")
	for _, filter := range []string{"-namespace=none", "-address=10.96.0.9", "-port=81"} {
		code, got, errs = kernlb(t, ns, "graph", filter)
		require.Equal(t, exitDone, code, errs)
		require.NotContains(t, got, "default/")
	}
	code, got, _ = kernlb(t, ns, "graph", "-service", "default/web", "-f", file, "-format", "dot")
	require.Equal(t, exitDone, code)
	require.Contains(t, got, "default/web:http")
	code, _, errs = kernlb(t, ns, "graph", "-service", "default/wep")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "did you mean default/web?")
	for flag, value := range map[string]string{"-format": "png", "-hooks": "IPv5"} {
		code, _, errs = kernlb(t, ns, "graph", flag, value)
		require.Equal(t, exitInvalid, code)
		require.Contains(t, errs, flag+": ")
	}
}
