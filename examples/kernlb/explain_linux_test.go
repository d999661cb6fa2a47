package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// localWeb is a service with policy Local, no endpoint on node n1, and one that is not ready.
func localWeb() string {
	return strings.NewReplacer("port: 80,", "port: 80, nodePort: 30080,", "{ready: true}}]",
		"{ready: true}}, {addresses: [10.244.1.3], conditions: {ready: false}, nodeName: n1}]").
		Replace(serviceManifest("web", "10.96.0.1", "",
			"type: NodePort, externalTrafficPolicy: Local"))
}

func TestExplain(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	refused := serviceManifest("lc", "10.96.0.2", "annotations: {kernlb.io/scheduler: lc}", "")
	file := filepath.Join(t.TempDir(), "web.yaml")
	require.NoError(t, os.WriteFile(file, []byte(localWeb()+refused), 0o600))
	explain := func(name string, args ...string) string {
		args = append([]string{"explain", name, "-node", "n1"}, args...)
		code, out, errs := kernlb(t, ns, args...)
		require.Equal(t, exitDone, code, errs)
		return out
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

	code, _, errs := kernlb(t, ns, "apply", "-keep-going", "-f", file, "-node", "n1")
	require.Equal(t, exitFailed, code, errs)
	out = explain("default/web", "-f", file)
	require.Contains(t, out, "10.96.0.1:80/tcp    http  cluster-ip  holds it  10.244.1.2:8080\n\n"+
		"ENDPOINT    CONDITION      NODE  ZONE  PORT\n"+
		"10.244.1.2  ready,serving  -     -     http: is used at 8080, not where the policy is "+
		"Local\n10.244.1.3  serving        n1    -     http: is not ready\n\n"+
		"KERNEL OBJECTS (nftables): what would be sent to remove it\n")
	require.Contains(t, out, "delete element ip kernlb service-endpoints { 10.96.0.1 . tcp . 80 . "+
		"0 : 10.244.1.2 . 8080 }\n")
	out = explain("default/web")
	require.Contains(t, out, "because externalTrafficPolicy is Local and no ready endpoint is on "+
		"this node; 1 endpoint is elsewhere\n")
	require.Contains(t, out, "delete element ip kernlb cluster-ips { 10.96.0.1 }\n")

	other := strings.NewReplacer("port: 8080", "port: 9090", "port: 80, nodePort: 30080",
		"port: 80, nodePort: 30081").Replace(localWeb())
	require.NoError(t, os.WriteFile(file, []byte(other), 0o600))
	out = explain("default/web", "-f", file)
	for _, row := range []string{"*:30080/tcp (IPv4)  http  node-port   holds it, not wanted ",
		"*:30081/tcp (IPv4)  http  node-port   does not hold it ",
		"10.96.0.1:80/tcp    http  cluster-ip  holds another ", " 10.244.1.2:9090\n"} {
		require.Contains(t, out, row)
	}
	code, _, errs = kernlb(t, ns, "explain", "default/wep")
	require.Equal(t, exitFailed, code)
	require.Equal(t, "kernlb explain: there is no service \"default/wep\"; did you mean "+
		"default/web?\n", errs)
}

// What the kernel has of a service is named by every backend that it supports.
func TestExplainOnIptables(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	manifest := serviceManifest("web", "10.96.0.1", "", "") +
		serviceManifest("web2", "10.96.0.2", "", "")
	code, _, errs := kernlbWith(t, ns, manifest, "apply", "-f", "-", "-backend", "iptables")
	require.Equal(t, exitDone, code, errs)
	code, out, errs := kernlb(t, ns, "explain", "-backend", "auto", "default/web")
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, out, "KERNEL OBJECTS (iptables): what would be sent to remove it\n")
	require.Contains(t, out, "10.96.0.1")
	require.NotContains(t, out, "10.96.0.2", "that of another service")
}

// Every object of the kernel is traced back to the service that wants it.
func TestExplainObject(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	manifest := ""
	for i := range 20 {
		manifest += strings.ReplaceAll(serviceManifest(fmt.Sprint("s", i),
			fmt.Sprint("10.96.0.", i+1), "", ""), "10.244.1.2", fmt.Sprint("10.244.1.", i+1))
	}
	object := func(backend, text string) string {
		code, out, errs := kernlb(t, ns, "explain", "-backend", backend, "-object", text)
		require.Equal(t, exitDone, code, errs)
		return out
	}
	for _, backend := range []string{"nftables", "iptables"} {
		code, _, errs := kernlbWith(t, ns, manifest, "apply", "-f", "-", "-backend", backend)
		require.Equal(t, exitDone, code, errs)
	}
	for _, text := range []string{"10.244.1.17", "10.96.0.17 . tcp"} {
		out := object("nftables", text)
		require.True(t, strings.HasPrefix(out, "default/s16\n  "), out)
		require.NotContains(t, out, "default/s1\n")
	}
	code, out, errs := kernlb(t, ns, "explain", "-backend", "iptables", "default/s6")
	require.Equal(t, exitDone, code, errs)
	chain := regexp.MustCompile("KUBE-SVC-[A-Z0-9]+").FindString(out)
	require.True(t, strings.HasPrefix(object("iptables", chain), "default/s6\n  "), chain)
	code, _, errs = kernlb(t, ns, "explain", "-object", "10.9.9.9")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "no service wants an object with \"10.9.9.9\"")
	code, _, errs = kernlb(t, ns, "explain", "default/web", "-object", "x")
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "explain is about -object, or about the service default/web")
}
