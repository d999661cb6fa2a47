package main

import (
	"cmp"
	"maps"
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

// silentWorld is a service with two pods, and a program that takes out the silent pod.
type silentWorld struct {
	*watched
	*netnstest.Cluster
	ipv6 bool
}

func newSilentWorld(t *testing.T, ipv6 bool, flag, annotations string) *silentWorld {
	t.Helper()
	s := &silentWorld{newWatched(t, flag, "-backend", "nftables", "-listen", "127.0.0.1:0"),
		netnstest.Start(t, netnstest.Options{}), ipv6}
	s.ns = s.Node.NS
	text := strings.Replace(serviceManifest("a", "10.96.0.1", annotations, ""),
		"endpoints: [", "endpoints: [{addresses: [10.244.1.1], conditions: {ready: true}}, ", 1)
	if ipv6 {
		text = strings.NewReplacer("10.96.0.1", `"fd00:10:96::1"`, "addressType: IPv4",
			"addressType: IPv6", "10.244.1.1", s.Pods[0].IPv6.String(), "10.244.1.2",
			s.Pods[1].IPv6.String()).Replace(text)
	}

	s.write("a.yaml", text)
	return s
}

// serve starts the server of a pod.
func (s *silentWorld) serve(i int) *netnstest.Server {
	server, err := s.Pods[i].NS.Serve(s.Pods[i].Name, servicemodel.TCP, s.at(i))
	require.NoError(s.t, err)
	return server
}

// at returns the endpoint of a pod.
func (s *silentWorld) at(i int) netip.AddrPort {
	if s.ipv6 {
		return netip.AddrPortFrom(s.Pods[i].IPv6, 8080)
	}
	return netip.AddrPortFrom(s.Pods[i].IPv4, 8080)
}

// answer returns what connections of two clients get: the names of servers, or what else happened.
func (s *silentWorld) answer() map[string]bool {
	to := netip.MustParseAddrPort("10.96.0.1:80")
	if s.ipv6 {
		to = netip.MustParseAddrPort("[fd00:10:96::1]:80")
	}
	var probes []netnstest.Probe
	for i := range 16 {
		probes = append(probes, netnstest.Probe{From: s.Outside[i%2], Proto: servicemodel.TCP,
			To: to})
	}

	got := map[string]bool{}
	for _, o := range netnstest.SendAll(s.t.Context(), probes) {
		got[cmp.Or(o.Server, string(o.Kind))] = true
	}
	return got
}

// answers waits until only these servers answer.
func (s *silentWorld) answers(want ...string) {
	s.t.Helper()
	all := map[string]bool{}
	for _, name := range want {
		all[name] = true
	}
	require.Eventually(s.t, func() bool { return maps.Equal(all, s.answer()) }, 60*time.Second,
		50*time.Millisecond)
}

func ejects(t *testing.T, flag, annotations string) {
	t.Helper()
	s := newSilentWorld(t, false, flag, annotations)
	first := s.serve(0)
	s.serve(1)
	s.start()
	s.answers("pod1", "pod2")
	require.NoError(t, first.Close())
	s.answers("pod2")
	s.logs("10.244.1.1:8080 of default/a:http ejected: ")
	s.namesSilent()
	s.serve(0)
	s.answers("pod1", "pod2")
	s.logs("10.244.1.1:8080 of default/a:http answers again after ")
}

// A program that is killed leaves the silent endpoint out. The next one knows it, and lets it in
// only when it answers.
func TestWatchRemembersSilentEndpoints(t *testing.T) {
	t.Parallel()
	for family, ipv6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			s := newSilentWorld(t, ipv6, "-eject-silent", "")
			first := s.serve(0)
			s.serve(1)
			s.start()
			s.answers("pod1", "pod2")
			require.NoError(t, first.Close())
			s.answers("pod2")
			s.logs(" ejected: ") // and kept before
			s.kill()
			only := map[string]bool{"pod2": true}
			require.Equal(t, only, s.answer(), "the kernel goes on")

			s.start()
			s.logs("msg=listening")
			for began := time.Now(); time.Since(began) < 3*time.Second; {
				require.Equal(t, only, s.answer(), "after the restart")
				time.Sleep(100 * time.Millisecond)
			}

			p, out := process(t, s.ns, "status", "-page", "http://"+s.address())
			require.NoError(t, p.Wait(), "%s", out)
			require.Contains(t, out.String(), "silent: "+s.at(0).String()+" of default/a:http "+
				"ejected ")
			require.NotContains(t, s.log.String(), " let in on trial ")

			s.kill()
			s.serve(0)
			require.Equal(t, only, s.answer())
			started := time.Now()
			s.start()
			s.answers("pod1", "pod2")
			t.Log("it came back while no program ran, and serves after", time.Since(started))
			s.logs(s.at(0).String() + " of default/a:http answers again after ")
		})
	}
}

// kill ends the program as the kernel does when there is no memory.
func (s *silentWorld) kill() {
	require.NoError(s.t, s.process.Process.Kill())
	_ = s.process.Wait()
	s.process = nil
}

// namesSilent runs the commands that show a service, whose first endpoint was ejected because its
// program is gone. They know the reason, and nothing else is wrong.
func (s *silentWorld) namesSilent() {
	s.t.Helper()
	const evidence = `ejected \d+s ago: \d+ connections of [12] clients unanswered in `
	const line = `silent: 10\.244\.1\.1:8080 of default/a:http ` + evidence
	const traced = `(?m)^  silent +10\.244\.1\.1:8080 ` + evidence + `.*\n  outcome `
	const way = " -from 192.0.2.10 -to 10.96.0.1:80/tcp"
	wrong := []string{"10.244.1.1:8080: refuses connections, " + evidence,
		"WRONG  not-listening: 10.244.1.1:8080 refuses", "until it answers this node"}
	for args, want := range map[string][]string{
		"status":                   {line},
		"show":                     {line},
		"show -spread":             {line},
		"show -o json":             {`"endpoint": "10\.244\.1\.1:8080",\s+"out": true`},
		"show -diff -f":            {`\+  -> 10\.244\.1\.1`, line},
		"explain default/a":        {line},
		"explain default/a -f":     {line, "  holds it  ", "http: " + evidence},
		"trace" + way:              {traced},
		"trace -f" + way:           {traced, "1 of 2 endpoints are used"},
		"plan -f":                  {`note: ` + line + `.*; the plan brings it back`},
		"flows":                    {line},
		"flows -service default/a": {line},
		"trace -send" + way:        {traced, "it works"},
		"trace -send -endpoint 10.244.1.1:8080" + way: {"10.244.1.1:8080 refuses"},
		"diagnose default/a":                          wrong,
		"diagnose default/a -f":                       wrong,
	} {
		s.answers("pod2") // in case it has just been let in on trial
		l := append(strings.Fields(args), "-page", "http://"+s.address())
		if i := slices.Index(l, "-f"); i > 0 {
			l = slices.Insert(l, i+1, s.dir)
		}
		p, out := process(s.t, s.ns, l...)
		_ = p.Wait()
		for _, text := range want {
			require.Regexp(s.t, text, out.String(), args)
		}

		require.NotContains(s.t, out.String(), "does not match the desired state", args)
	}
}
