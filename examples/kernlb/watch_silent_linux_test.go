package main

import (
	"net/netip"
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
	p, status := process(t, w.ns, "status", "-page", "http://"+w.address())
	_ = p.Wait()
	require.Contains(t, status.String(), "silent: 10.244.1.1:8080 of default/a:http ejected ")
	serve(0)
	answers("pod1", "pod2")
	w.logs("10.244.1.1:8080 of default/a:http answers again after ")
}
