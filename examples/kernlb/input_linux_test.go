package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// A manifest that is wrong or empty never removes objects from the kernel.
func TestWrongInputTouchesNothing(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	whole := serviceManifest("web", "10.96.0.1", "", "")
	done(t, ns, whole, "apply -f -")
	const none = "no service in -: if all that the kernel has is to be removed, say " +
		"-allow-empty, or use cleanup"
	const noObject = "error: standard input:1: the file holds no object"
	for text, want := range map[string]string{
		strings.Replace(whole, "kind: Service", "kind: Sevice", 1): "error: standard input:4: " +
			"document 1: Sevice default/web: kind: Sevice: did you mean Service?",
		strings.Replace(whole, "port: 80,", "port: 80, nodePort: 30080,", 1): "error: standard " +
			"input:6: document 1: Service default/web: spec.ports[0].nodePort: 30080: may only",
		"":          noObject,
		"# later\n": noObject,
		"{apiVersion: v1, kind: List, items: []}": noObject,
		"{apiVersion: apps/v1, kind: Deployment}": none,
	} {
		for _, args := range []string{"apply", "plan", "apply -keep-going"} {
			if args == "apply -keep-going" && strings.Contains(text, "nodePort") {
				want = none // the service is left out
			}
			out, errs := kernlb(t, ns, text, exitInvalid, args+" -f -")
			require.Contains(t, errs, want)
			require.Empty(t, out)
		}
	}
	require.Contains(t, done(t, ns, "", "show"), "10.96.0.1:80/tcp")

	for _, text := range []string{"", "# none\n", "{apiVersion: v1, kind: List, items: []}"} {
		done(t, ns, whole, "apply -f -")
		require.Contains(t, done(t, ns, text, "apply -f - -allow-empty"),
			"0 added, 0 changed, 1 removed")
	}
}

// Warnings come after the plan, where users see them.
func TestPlanEndsWithWarnings(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	web := serviceManifest("web", "10.96.0.1", "annotations: {kernlb.io/conections: 30s}",
		"type: LoadBalancer, loadBalancerIP: 192.0.2.1, loadBalancerSourceRanges: [10.0.0.0/8]")
	lost := strings.NewReplacer("service-name: web", "service-name: wep", "name: web,",
		"name: lost,").Replace(web[strings.LastIndex(web, "---"):])
	path := filepath.Join(t.TempDir(), "web.yaml")
	require.NoError(t, os.WriteFile(path, []byte(web+lost), 0o600))
	out, errs := kernlb(t, ns, "", exitDone, "plan -f", path)
	require.Contains(t, out, "10.96.0.1")
	web = ": document 1: Service default/web: "
	require.Equal(t, "warning: "+path+":5"+web+"metadata.annotations[kernlb.io/conections]: 30s: "+
		"means nothing; did you mean kernlb.io/connections?\n"+
		"warning: "+path+":6"+web+"spec.loadBalancerIP: 192.0.2.1: has no effect: the addresses "+
		"of load balancers are read from status.loadBalancer.ingress\n"+
		"warning: "+path+":6"+web+"spec.loadBalancerSourceRanges: restrict nobody: they are for "+
		"the addresses in status.loadBalancer.ingress, and there are none\n"+
		"warning: "+path+":15: document 3: EndpointSlice default/lost: "+
		"metadata.labels[kubernetes.io/service-name]: wep: there is no Service default/wep; did "+
		"you mean web?\n", errs)
}

// plan and apply say why a service refuses connections, and so does show with manifests.
func TestRefusingServicesAreExplained(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	manifest := serviceManifest("web", "10.96.0.1", "", "type: NodePort, "+
		"externalTrafficPolicy: Local") + strings.Replace(serviceManifest("db", "10.96.0.2", "",
		""), "{ready: true}", "{ready: false}", 1)
	manifest = strings.Replace(manifest, "port: 80,", "port: 80, nodePort: 30080,", 1)
	const local = "externalTrafficPolicy is Local and no ready endpoint is on "
	for _, command := range []string{"plan", "apply"} {
		out, errs := kernlb(t, ns, manifest, exitDone, command+" -f - -node n1")
		require.Equal(t, "note: default/web:http drops connections from outside: "+local+"node "+
			"n1; 1 endpoint names no node (*4:30080/tcp)\n"+
			"note: default/db:http rejects connections: 1 endpoint, none ready "+
			"(10.96.0.2:80/tcp)\n", errs)
		if command == "plan" {
			require.Contains(t, out, "default/db:http cluster-ip -> reject; because 1 endpoint, "+
				"none ready\n")
		}
	}
	out := done(t, ns, "", "show")
	require.Contains(t, out, "because "+local+"this node; 1 endpoint is elsewhere\n")
	require.Contains(t, out, "because no endpoint can be used; with the manifests (-f), it is")
	out = done(t, ns, manifest, "show -f - -node n1")
	require.Contains(t, out, "because "+local+"node n1; 1 endpoint names no node")
	require.Contains(t, out, "because 1 endpoint, none ready\n")
	ready := strings.Replace(manifest, "{ready: false}", "{}", 1)
	require.Contains(t, done(t, ns, ready, "show -f - -o json"),
		`"cause": "it is not up to date with the manifests"`)
}

// serviceManifest returns a service with one endpoint, and further metadata and spec.
func serviceManifest(name, ip, metadata, spec string) string {
	return strings.NewReplacer("NAME", name, "ADDRESS", ip, "METADATA", metadata, "SPEC", spec).
		Replace(`
---
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: default, METADATA}
spec: {clusterIP: ADDRESS, ports: [{name: http, port: 80, protocol: TCP}], SPEC}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: NAME, namespace: default, labels: {kubernetes.io/service-name: NAME}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.2], conditions: {ready: true}}]
`)
}

func TestKeepGoingLeavesOutWhatIsRefused(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	manifest := serviceManifest("good", "10.96.0.1", "", "") + refusedOne("lc", "10.96.0.2") +
		serviceManifest("thief", "10.96.0.3", "", "externalIPs: [10.96.0.1]") +
		serviceManifest("bad", "10.96.0.4", "", "externalIPs: [nowhere]")
	for _, backend := range []string{"nftables", "auto"} {
		out, errs := kernlb(t, ns, manifest, exitInvalid, "apply -f - -backend", backend)
		require.Contains(t, errs, "Service default/bad: spec.externalIPs[0]: nowhere")
		require.Empty(t, out)
	}
	without := strings.Replace(manifest, "nowhere", "192.0.2.4", 1)
	fails(t, ns, without, exitInvalid, "error: nftables cannot express service default/lc:http: "+
		"scheduler: lc", "apply -f -")
	require.NotContains(t, done(t, ns, "", "show"), "10.96.0", "nothing was applied")

	for _, command := range []string{"plan", "apply", "plan"} {
		_, errs := kernlb(t, ns, manifest, exitFailed, command+" -f - -keep-going")
		for _, says := range []string{
			"refused: default/lc: nftables cannot express service default/lc:http: scheduler: lc " +
				"(nftables has random, rr, wrr, sh and mh, and ipvs the others)\n",
			"error: standard input:",
			"warning: 10.96.0.1:80/tcp is claimed by default/good:http and default/thief:http: " +
				"default/good:http has it\n",
			"kernlb " + command + ": done, except for what was refused: see above\n"} {
			require.Contains(t, errs, says)
		}
	}
	out, _ := kernlb(t, ns, manifest, exitFailed, "plan -f - -keep-going -o json")
	require.Contains(t, out, `"service": "default/lc"`)
	out = done(t, ns, "", "show")
	require.Contains(t, out, "10.96.0.1:80/tcp")
	require.Contains(t, out, "10.96.0.3:80/tcp")
	require.NotContains(t, out, "10.96.0.2")
	require.NotContains(t, out, "10.96.0.4")

	done(t, ns, without, "apply -f - -keep-going -annotations=")
	kernlb(t, ns, "kind: [", exitInvalid, "apply -f - -keep-going") // nobody knows what it was
	require.Contains(t, done(t, ns, "", "show"), "10.96.0.4:80/tcp")
}

// The output of plan can be applied later, once, and only if the kernel is as it was.
func TestAPlanIsAppliedLater(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	out := done(t, ns, webManifest, "plan -f - -o json")
	file := filepath.Join(t.TempDir(), "plan.json")
	require.NoError(t, os.WriteFile(file, []byte(out), 0o600))

	fails(t, ns, "", exitInvalid, "-changes: what was planned is applied without manifests (-f)",
		"apply -changes", file, "-f", file)
	require.Contains(t, done(t, ns, "", "apply -changes", file),
		"nftables: 1 added, 0 changed, 0 removed")

	out = done(t, ns, "", "show -o json")
	var shown struct {
		Backend     string                `json:"backend"`
		Observation dataplane.Observation `json:"observation"`
		Causes      []causeJSON           `json:"causes"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &shown))
	require.Equal(t, 1, shown.Observation.Table.Len())
	require.NotNil(t, shown.Observation.Table.Frontend(shown.Causes[0].Frontend))

	fails(t, ns, "", exitFailed, "the change set begins from another table", "apply -changes", file)
	out = done(t, ns, webManifest, "plan -f -")
	require.Equal(t, "nothing would change\n", out)

	require.NoError(t, os.WriteFile(file, []byte(`{"services": []}`), 0o600))
	fails(t, ns, "", exitInvalid, "it is not what plan -o json prints", "apply -changes", file)
}

// The chains of a kube-proxy that runs are its own, until another instance has other names.
func TestARunningKubeProxyIsSpared(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	file := filepath.Join(t.TempDir(), "plan.json")
	out := done(t, ns, webManifest, "plan -f - -backend iptables -o json")
	require.NoError(t, os.WriteFile(file, []byte(out), 0o600))
	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:10249")
		return err
	}))
	server := &http.Server{Handler: http.HandlerFunc(func(a http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(a, "iptables")
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	for _, args := range []string{"apply -f -", "apply -changes " + file,
		"watch -f " + t.TempDir()} {
		fails(t, ns, webManifest, exitFailed, "kube-proxy runs in iptables mode", args+
			" -backend iptables")
	}
	done(t, ns, webManifest, "apply -f - -backend iptables -instance mine")
	done(t, ns, webManifest, "apply -f -")
}

func TestCleanupOfKubeProxy(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	// as its nftables mode
	nstest.NFT(t, ns, "add table ip kube-proxy; add chain ip kube-proxy services")
	run := func(args string) string { return done(t, ns, "", "cleanup -of kube-proxy "+args) }
	const want = "nft delete table ip kube-proxy\n"
	require.Contains(t, run("-plan"), want)
	var plan kubeproxy.Plan
	require.NoError(t, json.Unmarshal([]byte(run("-plan -o json")), &plan))
	require.Len(t, plan.Tables, 1)
	require.Equal(t, "kube-proxy", plan.Tables[0].Name)
	require.Contains(t, run(""), want)
	require.Equal(t, "nothing of kube-proxy to delete\n", run(""))
}
