package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/nstest"
)

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
		code, _, errs := kernlb(t, ns, "", "trace -from 192.0.2.1%eth0 -to 10.96.0.1:80/tcp "+
			"-instance "+name)
		require.Equal(t, exitDone, code, errs)
		require.Equal(t, want, strings.Contains(errs, "-cluster-cidr CIDR"), errs)
	}

	for flags, want := range map[[2]string]string{
		{"a", "10.96.0.1:80/tcp"}:         `"a" for flag -from: want an IP address`,
		{"10.0.0.1", "10.96.0.1:80"}:      `"10.96.0.1:80" for flag -to: want IP:PORT/PROTOCOL`,
		{"10.0.0.1", "10.96.0.1:80/icmp"}: `"10.96.0.1:80/icmp" for flag -to: want`,
		{"fd00::1", "10.96.0.1:80/tcp"}:   "are of different families",
	} {
		fails(t, ns, "", exitInvalid, want, "trace -from", flags[0], "-to", flags[1])
	}
}
