package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// localWeb returns a service with policy Local, whose only endpoint on node n1 is not ready.
func localWeb() string {
	return strings.NewReplacer("port: 80,", "port: 80, nodePort: 30080,", "{ready: true}}]",
		"{ready: true}}, {addresses: [10.244.1.3], conditions: {ready: false}, nodeName: n1}]").
		Replace(serviceManifest("web", "10.96.0.1", "",
			"type: NodePort, externalTrafficPolicy: Local"))
}

// firewall is the ruleset of another program.
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

// The drawings in docs/kernlb.md are the present output of the command.
func TestDrawingsInTheDocumentsAreNew(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	if _, err := os.Stat("../../docs"); err != nil {
		t.Skip("the documents are not beside the test: needs no virtual machine")
	}
	shop := strings.Replace(serviceManifest("shop", "10.96.0.2", "", ""), "ready: true",
		"ready: false", 1)
	file := filepath.Join(t.TempDir(), "services.yaml")
	require.NoError(t, os.WriteFile(file, []byte(localWeb()+shop), 0o600))
	done(t, ns, "", "apply -f "+file+" -node n1 -node-ip 192.0.2.1")
	nstest.NFT(t, ns, firewall)
	for name, args := range map[string][]string{
		"services": {"-f", file, "-node", "n1", "-node-ip", "192.0.2.1"},
		"hooks":    {"-hooks", "ipv4"},
	} {
		got := done(t, ns, "", "graph -format svg", args...)
		golden.File(t, "../../docs/graph-"+name+".svg", got)
	}

	got := done(t, ns, "", "graph -service default/shop")
	require.Contains(t, got, "no endpoint can be used", "the kernel does not say why")
	require.NotContains(t, got, "default/web")
	for _, filter := range []string{"-namespace=none", "-address=10.96.0.9", "-port=81"} {
		got = done(t, ns, "", "graph", filter)
		require.NotContains(t, got, "default/")
	}

	got = done(t, ns, "", "graph -service default/web -f "+file+" -format dot")
	require.Contains(t, got, "default/web:http")
	fails(t, ns, "", exitFailed, "did you mean default/web?", "graph -service default/wep")
}
