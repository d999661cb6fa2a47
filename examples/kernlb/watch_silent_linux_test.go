package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// With -eject-silent or the annotation, an endpoint that does not answer clients is taken out, and
// comes back.
func TestWatchEjectsSilentEndpoints(t *testing.T) {
	t.Parallel()
	for how, c := range map[string]struct{ flag, annotations string }{
		"flag":       {"-eject-silent", ""},
		"annotation": {"-eject-silent=false", "annotations: {kernlb.io/silent-endpoints: eject}"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			ejects(t, c.flag, c.annotations)
		})
	}
}

func ejects(t *testing.T, flag, annotations string) {
	t.Helper()
	c := netnstest.Start(t, netnstest.Options{})
	serve := func(i int) *netnstest.Server {
		s, err := c.Pods[i].NS.Serve(c.Pods[i].Name, servicemodel.TCP,
			netip.AddrPortFrom(c.Pods[i].IPv4, 8080))
		require.NoError(t, err)
		return s
	}

	first := serve(0)
	serve(1)
	w := newWatched(t, flag, "-backend", "nftables", "-listen", "127.0.0.1:0")
	w.ns = c.Node.NS
	w.write("a.yaml", strings.Replace(serviceManifest("a", "10.96.0.1", annotations, ""),
		"endpoints: [", "endpoints: [{addresses: [10.244.1.1], conditions: {ready: true}}, ", 1))
	w.start()
	w.holds("10.96.0.1")

	// answers waits until only these servers answer connections of two clients.
	answers := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			var probes []netnstest.Probe
			for i := range 16 {
				probes = append(probes, netnstest.Probe{From: c.Outside[i%2],
					Proto: servicemodel.TCP, To: netip.MustParseAddrPort("10.96.0.1:80")})
			}

			got := map[string]bool{}
			for _, o := range netnstest.SendAll(t.Context(), probes) {
				got[o.Server] = true
			}
			for _, name := range want {
				if !got[name] {
					return false
				}
			}

			return len(got) == len(want)
		}, 60*time.Second, 50*time.Millisecond)
	}

	answers("pod1", "pod2")
	require.NoError(t, first.Close())
	answers("pod2")
	w.logs("10.244.1.1:8080 of default/a:http ejected: ")
	w.namesSilent(func() { answers("pod2") })
	serve(0)
	answers("pod1", "pod2")
	w.logs("10.244.1.1:8080 of default/a:http answers again after ")
}

// namesSilent runs the commands that show a service, whose first endpoint was ejected because its
// program is gone. They know the reason, and nothing else is wrong. silent waits until it is out,
// in case it has just been let in on trial.
func (w *watched) namesSilent(silent func()) {
	w.t.Helper()
	const evidence = `ejected \d+s ago: \d+ connections of [12] clients unanswered in `
	const line = `silent: 10\.244\.1\.1:8080 of default/a:http ` + evidence
	const traced = `(?m)^  silent +10\.244\.1\.1:8080 ` + evidence + `.*\n  outcome `
	const way = " -from 192.0.2.10 -to 10.96.0.1:80/tcp"
	wrong := []string{"10.244.1.1:8080: refuses connections, " + evidence,
		"WRONG  not-listening: 10.244.1.1:8080 refuses", "until it answers this node"}
	for args, want := range map[string][]string{
		"status":               {line},
		"show":                 {line},
		"show -spread":         {line},
		"show -o json":         {`"endpoint": "10\.244\.1\.1:8080",\s+"out": true`},
		"show -diff -f":        {`\+  -> 10\.244\.1\.1`, line},
		"explain default/a":    {line},
		"explain default/a -f": {line, "  holds it  ", "http: " + evidence},
		"trace" + way:          {traced},
		"trace -send" + way:    {traced, "it works"},
		"trace -send -endpoint 10.244.1.1:8080" + way: {"10.244.1.1:8080 refuses"},
		"diagnose default/a":                          wrong,
		"diagnose default/a -f":                       wrong,
	} {
		silent()
		l := append(strings.Fields(args), "-page", "http://"+w.address())
		if i := slices.Index(l, "-f"); i > 0 {
			l = slices.Insert(l, i+1, w.dir)
		}
		p, out := process(w.t, w.ns, l...)
		_ = p.Wait()
		for _, text := range want {
			require.Regexp(w.t, text, out.String(), args)
		}

		require.NotContains(w.t, out.String(), "does not match the desired state", args)
	}
}
