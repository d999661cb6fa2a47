package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/servetest"
	"github.com/kernlb/kernlb/servicemodel"
)

// inMemory returns a balancer without a kernel.
func inMemory(tb testing.TB, kernel *memory.Kernel) *balancer {
	tb.Helper()
	backend := memory.New(kernel)
	tb.Cleanup(func() { _ = backend.Close() })
	b := must.OK(newBalancer(dataplane.New(backend, nil), slog.New(slog.DiscardHandler)))(tb)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.monitor.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		require.ErrorIs(tb, <-ended, context.Canceled)
	})

	return b
}

func parse(tb testing.TB, format string, args ...any) *config.File {
	tb.Helper()
	return must.OK(config.Parse("lb.yaml", fmt.Appendf(nil, format, args...)))(tb)
}

// endpoints returns the endpoints that would get new connections to a service.
func (b *balancer) endpoints(service string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, e := range b.state.Endpoints(servicemodel.Name{Namespace: config.Namespace,
		Name: service}) {
		if e.Condition == servicemodel.Ready {
			out = append(out, e.Addr.String())
		}
	}

	return strings.Join(out, " ")
}

// port returns a port of 127.0.0.1 that answers, or refuses if closed is set.
func port(t *testing.T, closed bool) uint16 {
	t.Helper()
	l := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	if closed {
		require.NoError(t, l.Close())
	} else {
		t.Cleanup(func() { _ = l.Close() })
	}

	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// seldom is a service with two backends that are checked once an hour.
const seldom = `services:
- name: web
  addresses: [203.0.113.10]
  port: 80
  backends:
  - {address: 10.0.0.1:80, checks: [&c {type: tcp, address: 127.0.0.1, port: %d, interval: %s}]}
  - {address: 10.0.0.2:80, checks: [*c]}
`

// A new process continues with the kernel's backends, whatever the first check says. Other backends
// must first pass a check.
func TestTheKernelSaysWhatWasUp(t *testing.T) {
	t.Parallel()
	kernel := &memory.Kernel{}
	before := inMemory(t, kernel)
	one := strings.Replace(seldom, "10.0.0.2:80", "10.0.0.3:80", 1)
	require.NoError(t, before.start(t.Context(), parse(t, one, port(t, false), "1h")))
	require.Eventually(t, func() bool { return before.endpoints("web") == "10.0.0.1 10.0.0.3" },
		time.Minute, time.Millisecond)
	must.OK(before.engine.Apply(t.Context(), before.state))(t)

	b := inMemory(t, kernel)
	f := parse(t, seldom, port(t, true), "1h")
	require.NoError(t, b.start(t.Context(), f))
	target := f.Services[0].Targets(&f.Services[0].Backends[0])[0]
	require.Eventually(t, func() bool { return b.monitor.Reports()[0].Failed == 1 }, time.Minute,
		time.Millisecond)
	require.Equal(t, checks.Up, b.monitor.State(target), "one failure is not enough")
}

// A new process does not know whether a drained backend was up. Its connections stay until a check
// fails.
func TestADrainedBackendIsReadyUntilACheckFails(t *testing.T) {
	t.Parallel()
	b := must.OK(newBalancer(dataplane.New(memory.New(nil), nil),
		slog.New(slog.DiscardHandler)))(t) // without Run, no check is made
	f := parse(t, seldom+"  - {address: 10.0.0.4:80, checks: [*c], weight: 0}\n", 1, "1h")
	require.NoError(t, b.start(t.Context(), f))
	conditions := func() (l []servicemodel.Condition) {
		for _, e := range b.state.Endpoints(f.Services[0].ModelName()) {
			l = append(l, e.Condition)
		}
		return l
	}

	require.Equal(t, []servicemodel.Condition{servicemodel.NotReady, servicemodel.NotReady,
		servicemodel.Quiesced}, conditions())
	drained := &f.Services[0].Backends[2]
	require.False(t, usable(&f.Services[0], drained, func(checks.Target) checks.State {
		return checks.Down
	}))
}

// A check with changed settings is a new one, and begins with the old verdict. A backend is checked
// once, however many services use it.
func TestVerdictsOutliveReloads(t *testing.T) {
	t.Parallel()
	b := inMemory(t, &memory.Kernel{})
	open, closed := port(t, false), port(t, true)
	require.NoError(t, b.start(t.Context(), parse(t, seldom, open, "1h")))
	require.Len(t, b.monitor.Reports(), 1)
	require.Eventually(t, func() bool { return b.endpoints("web") == "10.0.0.1 10.0.0.2" },
		time.Minute, time.Millisecond)
	known := b.backendStates()
	next := parse(t, seldom, closed, "2h")
	require.NoError(t, b.take(t.Context(), next, known))
	require.Equal(t, "10.0.0.1 10.0.0.2", b.endpoints("web"))
	require.Len(t, b.monitor.Reports(), 1)
	b.heard(checks.Report{}) // a removed target
}

// The cost of a verdict is that of one change. It does not grow with the number of services.
func BenchmarkVerdict(b *testing.B) {
	var text strings.Builder
	text.WriteString("services:\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "- name: web%d\n  addresses: [203.0.%d.%d]\n  port: 80\n  backends:\n",
			i, i/250, i%250)
		for j := range 10 {
			fmt.Fprintf(&text, "  - {address: 10.%d.%d.%d:80, checks: "+
				"[{type: tcp, interval: 1h, source: 127.0.0.1, address: 127.0.0.1, port: %d}]}\n",
				i/250, i%250, j, 1+j)
		}
	}

	lb := inMemory(b, &memory.Kernel{})
	f := parse(b, "%s", text.String())
	if err := lb.start(b.Context(), f); err != nil {
		b.Fatal(err)
	}
	r := checks.Report{Target: f.Services[7].Targets(&f.Services[7].Backends[0])[0]}
	one := f.Services[7:8]
	lb.users[r.Target] = []*config.Service{&one[0]}
	b.ReportAllocs()
	for b.Loop() {
		lb.heard(r)
	}
}

// Clients that are slow or idle are disconnected.
func TestHostileClientsAreDisconnected(t *testing.T) {
	t.Parallel()
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 1<<20))
	})
	servetest.Hostile(t, "/", 0, func(l net.Listener) func() {
		ctx, stop := context.WithCancel(context.Background())
		go func() { _ = serve(ctx, l, answer) }()
		return stop
	})
}

func TestTheExampleIsRight(t *testing.T) {
	t.Parallel()
	f := must.OK(config.Load("loadbalancer.yaml"))(t)
	require.Len(t, f.Services, 2)
}

// The README names every field.
func TestTheReadmeHasAllFields(t *testing.T) {
	t.Parallel()
	text := must.OK(os.ReadFile("README.md"))(t)
	for _, of := range []reflect.Type{reflect.TypeFor[config.File](),
		reflect.TypeFor[config.Service](), reflect.TypeFor[config.Backend](),
		reflect.TypeFor[config.Check]()} {
		for i := range of.NumField() {
			if name := config.Name(of.Field(i)); name != "" {
				require.Contains(t, string(text), "`"+name+"`")
			}
		}
	}
}

func TestTheCommandLine(t *testing.T) {
	t.Parallel()
	const conf, scheduled, own = "testdata/keepalived.conf", "testdata/scheduled.yaml",
		"testdata/own.yaml"
	for _, c := range []struct {
		args                   []string
		stdout, stderr, failed string
	}{
		{[]string{"-config", "loadbalancer.yaml", "-check"},
			"loadbalancer.yaml: right for nftables: 2 services\n", "", ""},
		{[]string{"-config", "loadbalancer.yaml", "-check", "-listen", "8080"}, "", "",
			"-listen: address 8080: missing port"},
		{[]string{"-config", "no.yaml", "-check"}, "", "", "no.yaml: no such file"},
		{[]string{"-config", "config/testdata/sorry.yaml", "-check"}, "", "",
			"loopback address\n(when these are mended, there may be more)"},
		{[]string{"-config", conf, "-check"}, "", "", "keepalived.conf:"},
		{[]string{"-config", "loadbalancer.yaml", "-backend", "pf"}, "", "", `"pf": must be`},
		{[]string{"-config", "loadbalancer.yaml", "-check", "-backend", "pf"}, "", "",
			`"pf": must be`},
		{[]string{"-cleanup", "-backend", "pf"}, "", "", `"pf": must be`},
		{[]string{"-check", "-cleanup"}, "", "", "-check and -cleanup: want one of them"},
		{[]string{"-cleanup", "-check"}, "", "", "-check and -cleanup: want one of them"},
		{[]string{"-config", scheduled, "-check"}, "", "",
			"scheduled.yaml:5: services[0].scheduler: nftables cannot express"},
		{[]string{"-config", scheduled, "-check"}, "", "",
			"scheduled.yaml:6: services[0].forwarding: nftables cannot express"},
		{[]string{"-config", own, "-check"}, "", "",
			"own.yaml:6: services[0].backends[0].address: 192.0.2.1:80 is where"},
		{[]string{"-config", own}, "", "", "own.yaml:5: services[0].sorry[0]: 192.0.2.1:80 is"},
		{[]string{"-config", "testdata/device.yaml", "-check"}, "", "",
			"device.yaml:5: services[0].device: there is no network device \"none0\""},
		{[]string{"-config", "loadbalancer.yaml", "-listen", "8080"}, "", "",
			"-listen: listen tcp"},
		{[]string{"start"}, "", "", `no command "start": see -help`},
		{[]string{"-colour"}, "", "", "not defined: -colour: see -help"},
		{[]string{"version"}, "loadbalancer ", "", ""},
		{[]string{"-h"}, "loadbalancer convert [-i ID] FILE", "", "help requested"},
		{[]string{"convert", conf}, "name: 192.0.2.1-80-tcp", "keepalived.conf:2: omega: ", ""},
		{[]string{"convert", conf}, "", "keepalived.conf:1: virtual_server: is the service " +
			"192.0.2.1-80-tcp", ""},
		{[]string{"convert", conf}, "; needs -backend ipvs: scheduler ", "needs -backend ipvs: " +
			"scheduler ", ""},
		{[]string{"convert", "keepalived/testdata/public/dns.conf"}, "# converted from " +
			"keepalived/testdata/public/dns.conf\n# 10.0.53.2 53 has no check and is always up: " +
			"add checks\nservices:\n", "", ""},
		{[]string{"convert"}, "", "", "want the name of one file"},
		{[]string{"convert", "-i", "lb1", "keepalived/testdata/public/templates.conf"},
			"source: 10.3.0.251", "templates.conf:23: vrrp_instance", ""},
		{[]string{"convert", "-j", conf}, "", "", "convert: flag provided but not defined: -j"},
		{[]string{"convert", "-h"}, "loadbalancer convert [-i ID] FILE", "",
			"help requested"},
		{[]string{"convert", "no.conf"}, "", "", "no.conf: no such file"},
		{[]string{"convert", "README.md"}, "", "", "README.md:"},
	} {
		var stdout, stderr bytes.Buffer
		err := command(t.Context(), c.args, &stdout, &stderr)
		if c.failed == "" {
			require.NoError(t, err, c.args)
		} else {
			require.ErrorContains(t, err, c.failed, c.args)
		}

		require.Contains(t, stdout.String(), c.stdout)
		require.Contains(t, stderr.String(), c.stderr)
	}
}
