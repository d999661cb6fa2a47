package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
			code, out, errs := kernlb(t, ns, text, args+" -f -")
			if args == "apply -keep-going" && strings.Contains(text, "nodePort") {
				want = none // the service is left out
			}
			require.Equal(t, exitInvalid, code, "%q: %s", text, errs)
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
	code, out, errs := kernlb(t, ns, "", "plan -f", path)
	require.Equal(t, exitDone, code, errs)
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

func TestFlowsOfAServiceThatIsNotThere(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	done(t, ns, webManifest, "apply -f -")
	code, _, errs := kernlb(t, ns, "", "flows -service default/wep")
	require.Equal(t, exitFailed, code)
	require.Equal(t, "kernlb flows: there is no service \"default/wep\"; did you mean "+
		"default/web?\n", errs)
	done(t, ns, "", "flows -service default/web")
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
		code, out, errs := kernlb(t, ns, manifest, command+" -f - -node n1")
		require.Equal(t, exitDone, code, errs)
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
