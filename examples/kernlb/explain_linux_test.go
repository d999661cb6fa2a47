package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/nstest"
)

// localWeb returns a service with policy Local, no endpoint on node n1, and one that is not ready.
func localWeb() string {
	return strings.NewReplacer("port: 80,", "port: 80, nodePort: 30080,", "{ready: true}}]",
		"{ready: true}}, {addresses: [10.244.1.3], conditions: {ready: false}, nodeName: n1}]").
		Replace(serviceManifest("web", "10.96.0.1", "",
			"type: NodePort, externalTrafficPolicy: Local"))
}

func TestExplain(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	refused := refusedOne("lc", "10.96.0.2")
	file := filepath.Join(t.TempDir(), "web.yaml")
	require.NoError(t, os.WriteFile(file, []byte(localWeb()+refused), 0o600))
	explain := func(name string, args ...string) string {
		return done(t, ns, "", "explain -node n1 "+name, args...)
	}
	const begin = "default/web\n  port http: 80/tcp, node port 30080\n" +
		"  internalTrafficPolicy Cluster, externalTrafficPolicy Local\n\n" +
		"FRONTEND            PORT  KIND        KERNEL            ENDPOINTS\n"
	require.Contains(t, explain("default/web", "-f", file), begin+
		"*:30080/tcp (IPv4)  http  node-port   does not hold it  10.244.1.2:8080; outside: drop; "+
		"because externalTrafficPolicy is Local and no ready endpoint is on node n1; 1 endpoint "+
		"names no node\n")
	out := explain("default/lc", "-f", file)
	require.Contains(t, out, "  refused: nftables cannot express service default/lc:http: ")
	require.NotContains(t, out, "FRONTEND")

	kernlb(t, ns, "", exitFailed, "apply -keep-going -f "+file+" -node n1")
	out = explain("default/web", "-f", file)
	require.Contains(t, out, "10.96.0.1:80/tcp    http  cluster-ip  holds it  10.244.1.2:8080\n\n"+
		"ENDPOINT    CONDITION      NODE  ZONE  PORT\n"+
		"10.244.1.2  ready,serving  -     -     http: is used at 8080, not where the policy is "+
		"Local\n10.244.1.3  serving        n1    -     http: is not ready\n\n"+
		"KERNEL OBJECTS (nftables), without those that it shares with others\n")
	require.Contains(t, out, "\nelement ip kernlb service-endpoints { 10.96.0.1 . tcp . 80 . "+
		"0 : 10.244.1.2 . 8080 }\n")
	out = explain("default/web")
	require.Contains(t, out, "because externalTrafficPolicy is Local and no ready endpoint is on "+
		"this node; 1 endpoint is elsewhere\n")
	require.Contains(t, out, "\nelement ip kernlb cluster-ips { 10.96.0.1 }\n")

	other := strings.NewReplacer("port: 8080", "port: 9090", "port: 80, nodePort: 30080",
		"port: 80, nodePort: 30081").Replace(localWeb())
	require.NoError(t, os.WriteFile(file, []byte(other), 0o600))
	out = explain("default/web", "-f", file)
	for _, row := range []string{"*:30080/tcp (IPv4)  http  node-port   holds it, not wanted ",
		"*:30081/tcp (IPv4)  http  node-port   does not hold it ",
		"10.96.0.1:80/tcp    http  cluster-ip  holds another: show -diff says which ",
		" 10.244.1.2:9090\n"} {
		require.Contains(t, out, row)
	}
	fails(t, ns, "", exitFailed, "kernlb explain: there is no service \"default/wep\"; did you "+
		"mean default/web?\n", "explain default/wep")
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

func TestTraceByManifestsAndByTheKernel(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	file := filepath.Join(t.TempDir(), "web.yaml")
	require.NoError(t, os.WriteFile(file, []byte(serviceManifest("web", "10.96.0.1", "",
		"type: NodePort, externalTrafficPolicy: Local")), 0o600))
	trace := func(to string, args ...string) string {
		return done(t, ns, "", "trace -from 10.244.9.9%eth0 -to "+to, args...)
	}
	done(t, ns, "", "apply -f "+file+" -cluster-cidr 10.244.0.0/16")
	const begin = "10.244.9.9 -> 10.96.0.1:80/tcp\n" +
		"  source       10.244.9.9 is a pod, by the range 10.244.0.0/16\n" +
		"  destination  10.96.0.1:80/tcp is a cluster IP of default/web:http\n" +
		"  policy       internalTrafficPolicy is Cluster: endpoints anywhere\n"
	const end = "  masquerade   the endpoint sees 10.244.9.9\n" +
		"  outcome      balanced over 10.244.1.2:8080 (1 of 1)\n"
	require.Equal(t, begin+"  endpoints    1 of 1 endpoint is used\n"+end,
		trace("10.96.0.1:80/tcp", "-f", file, "-cluster-cidr", "10.244.0.0/16"))
	require.Equal(t, begin+"  endpoints    1 endpoint is used\n"+end, trace("10.96.0.1:80/tcp"))
	require.Contains(t, trace("10.96.0.1:80/udp"), "outcome      rejected: 10.96.0.1 is "+
		"default/web, which has port 80/tcp, not 80/udp\n")
	require.Contains(t, trace("10.96.0.1:80/tcp", "-f", file, "-o", "json"),
		`"outcome": "balanced"`)

	// The command says how to name the network of pods, unless another program names it.
	for name, want := range map[string]bool{"mine": true, "kernlb-cni": false} {
		done(t, ns, "", "apply -f "+file+" -instance "+name)
		_, errs := kernlb(t, ns, "", exitDone, "trace -from 192.0.2.1%eth0 -to 10.96.0.1:80/tcp "+
			"-instance "+name)
		require.Equal(t, want, strings.Contains(errs, "-cluster-cidr CIDR"), errs)
	}
}

var update = flag.Bool("update", false, "make the drawings in docs anew")

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
		path := "../../docs/graph-" + name + ".svg"
		if *update {
			require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		}
		want := ok(os.ReadFile(path))(t)
		require.Equal(t, string(want), got, "go test ./examples/kernlb -run Drawings -update")
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
