package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/nstest"
)

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
	manifest := serviceManifest("good", "10.96.0.1", "", "") + serviceManifest("lc", "10.96.0.2",
		"annotations: {kernlb.io/scheduler: lc}", "") +
		serviceManifest("thief", "10.96.0.3", "", "externalIPs: [10.96.0.1]") +
		serviceManifest("bad", "10.96.0.4", "", "externalIPs: [nowhere]")
	for _, backend := range []string{"nftables", "auto"} {
		code, out, errs := kernlb(t, ns, manifest, "apply -f - -backend", backend)
		require.Equal(t, exitInvalid, code, errs)
		require.Contains(t, errs, "Service default/bad: spec.externalIPs[0]: nowhere")
		require.Empty(t, out)
	}
	without := strings.Replace(manifest, "nowhere", "192.0.2.4", 1)
	code, _, errs := kernlb(t, ns, without, "apply -f -")
	require.Equal(t, exitInvalid, code, errs)
	require.Contains(t, errs,
		"error: nftables cannot express service default/lc:http: scheduler: lc")
	require.NotContains(t, done(t, ns, "", "show"), "10.96.0", "nothing was applied")

	for _, command := range []string{"plan", "apply", "plan"} {
		code, _, errs = kernlb(t, ns, manifest, command+" -f - -keep-going")
		require.Equal(t, exitFailed, code, errs)
		require.Contains(t, errs,
			"refused: default/lc: nftables cannot express service default/lc:http: scheduler: lc "+
				"(nftables has random, rr, wrr, sh and mh, and ipvs the others)\n")
		require.Contains(t, errs, "error: standard input:")
		require.Contains(t, errs,
			"warning: 10.96.0.1:80/tcp is claimed by default/good:http and default/thief:http: "+
				"default/good:http has it\n")
		require.Contains(t, errs,
			"kernlb "+command+": done, except for what was refused: see above\n")
	}
	code, out, errs := kernlb(t, ns, manifest, "plan -f - -keep-going -o json")
	require.Equal(t, exitFailed, code, errs)
	require.Contains(t, out, `"service": "default/lc"`)
	out = done(t, ns, "", "show")
	require.Contains(t, out, "10.96.0.1:80/tcp")
	require.Contains(t, out, "10.96.0.3:80/tcp")
	require.NotContains(t, out, "10.96.0.2")
	require.NotContains(t, out, "10.96.0.4")

	done(t, ns, without, "apply -f - -keep-going -annotations=")
	code, _, errs = kernlb(t, ns, "kind: [", "apply -f - -keep-going")
	require.Equal(t, exitInvalid, code, "nobody knows what it was: %s", errs)
	require.Contains(t, done(t, ns, "", "show"), "10.96.0.4:80/tcp")
}
