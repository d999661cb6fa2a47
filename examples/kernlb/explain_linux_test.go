package main

import (
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
	refused := serviceManifest("lc", "10.96.0.2", "annotations: {kernlb.io/scheduler: lc}", "")
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

	code, _, errs := kernlb(t, ns, "", "apply -keep-going -f "+file+" -node n1")
	require.Equal(t, exitFailed, code, errs)
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
	code, _, errs = kernlb(t, ns, "", "explain default/wep")
	require.Equal(t, exitFailed, code)
	require.Equal(t, "kernlb explain: there is no service \"default/wep\"; did you mean "+
		"default/web?\n", errs)
}

// explain names the kernel's objects of a service, with every backend that the kernel supports.
func TestExplainOnIptables(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	manifest := serviceManifest("web", "10.96.0.1", "", "") +
		serviceManifest("web2", "10.96.0.2", "", "")
	done(t, ns, manifest, "apply -f - -backend iptables")
	out := done(t, ns, "", "explain -backend auto default/web")
	require.Contains(t, out, "KERNEL OBJECTS (iptables), without those that it shares with others")
	require.Contains(t, out, "10.96.0.1")
	require.NotContains(t, out, "10.96.0.2", "that of another service")
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
		out := done(t, ns, "", "explain -backend", backend, "-object", text)
		return out
	}
	for _, backend := range []string{"nftables", "iptables"} {
		done(t, ns, manifest, "apply -f - -backend", backend)
	}
	for _, text := range []string{"10.244.1.17", "10.96.0.17 . tcp"} {
		out := object("nftables", text)
		require.True(t, strings.HasPrefix(out, "default/s16\n  "), out)
		require.NotContains(t, out, "default/s1\n")
	}
	out := done(t, ns, "", "explain -backend iptables default/s6")
	chain := regexp.MustCompile("KUBE-SVC-[A-Z0-9]+").FindString(out)
	require.True(t, strings.HasPrefix(object("iptables", chain), "default/s6\n  "), chain)
	fails(t, ns, "", exitFailed, "no service wants an object with \"10.9.9.9\"",
		"explain -object 10.9.9.9")
	fails(t, ns, "", exitInvalid, "explain is about -object, or about the service default/web",
		"explain default/web -object x")
}
