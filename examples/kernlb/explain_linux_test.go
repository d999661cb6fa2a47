package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// localWeb returns a service with policy Local, no endpoint on node n1, and one that is not ready.
func localWeb() string {
	return strings.NewReplacer("port: 80,", "port: 80, nodePort: 30080,", "{ready: true}}]",
		"{ready: true}}, {addresses: [10.244.1.3], conditions: {ready: false}, nodeName: n1}]").
		Replace(serviceManifest("web", "10.96.0.1", "",
			"type: NodePort, externalTrafficPolicy: Local"))
}

// For every object of the kernel, explain finds the service that needs it.
func TestExplainObject(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	manifest := ""
	for i := range 20 {
		manifest += strings.ReplaceAll(serviceManifest(fmt.Sprint("s", i),
			fmt.Sprint("10.96.0.", i+1), "", ""), "10.244.1.2", fmt.Sprint("10.244.1.", i+1))
	}
	object := func(backend, text string) string {
		return done(t, ns, "", "explain -backend", backend, "-object", text)
	}
	done(t, ns, manifest, "apply -f - -backend iptables")
	out := done(t, ns, "", "explain -backend auto default/s6")
	require.Contains(t, out, "KERNEL OBJECTS (iptables), without those that it shares with others")
	require.Contains(t, out, "10.96.0.7")
	require.NotContains(t, out, "10.96.0.8", "that of another service")
	chain := regexp.MustCompile("KUBE-SVC-[A-Z0-9]+").FindString(out)
	require.True(t, strings.HasPrefix(object("iptables", chain), "default/s6\n  "), chain)
	done(t, ns, manifest, "apply -f -")
	for _, text := range []string{"10.244.1.17", "10.96.0.17 . tcp"} {
		out := object("nftables", text)
		require.True(t, strings.HasPrefix(out, "default/s16\n  "), out)
		require.NotContains(t, out, "default/s1\n")
	}
	fails(t, ns, "", exitFailed, "no service wants an object with \"10.9.9.9\"",
		"explain -object 10.9.9.9")
}

// A trace names the endpoint that a hash chooses.
func TestTraceOfAHash(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"nftables", "iptables"} {
		for scheduler, want := range map[string]string{
			"sh":      "sh: a hash of 10.244.9.9 chooses 10.244.1.",
			"sh+port": "sh+port: a hash of the client's address and port chooses, for port 40000 ",
			"rr":      "",
		} {
			ns := nstest.New(t)
			manifest := strings.Replace(serviceManifest("web", "10.96.0.1",
				"annotations: {kernlb.io/scheduler: "+scheduler+"}", ""), "[10.244.1.2]",
				"[10.244.1.2], conditions: {ready: true}}, {addresses: [10.244.1.3]", 1)
			done(t, ns, manifest, "apply -f - -backend "+backend)
			trace := done(t, ns, "", "trace -from 10.244.9.9%eth0 -to 10.96.0.1:80/tcp -backend "+
				backend)
			require.Contains(t, trace, "balanced over 10.244.1.2:8080 (1 of 2), 10.244.1.3:8080")
			require.Equal(t, want != "", strings.Contains(trace, "  scheduler    "), trace)
			require.Contains(t, trace, want)
		}
	}
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

// The drawings in docs/graph.md are the present output of the command.
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
