package main

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/internal/test/promised"
	"github.com/kernlb/kernlb/servicemodel"
)

// quick is a service with checks in quick succession.
const quick = `services:
- name: web
  addresses: [203.0.113.10]
  port: 80
  checks: [{type: tcp, interval: 10ms, timeout: 30s}]
`

// A backend that fails is left out, and comes back when it recovers. The sorry server serves if no
// backend is left.
func TestBackendsThatFailAreLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.serve(0), w.serve(1)
	w.serve(2)
	w.write(quick + `  sorry: ["10.244.1.3:8080"]
  backends: [{address: 10.244.1.1:8080}, {address: 10.244.1.2:8080}]
- name: idle
  addresses: [203.0.113.11]
  port: 80
  checks: [{type: tcp}]
  backends: [{address: 10.244.1.1:7}]`)
	w.start()
	w.answers("pod1 pod2")
	warning := `msg="state warning" service=loadbalancer/idle `
	w.soon(func() bool { return strings.Contains(w.log.String(), warning) }, warning)
	require.NoError(t, second.Close())
	w.answers("pod1")
	require.NoError(t, first.Close())
	w.answers("pod3")
	second = w.serve(1)
	w.answers("pod2")
	require.NoError(t, second.Close())
	w.answers("pod3")
	require.Contains(t, w.get("/metrics"),
		`loadbalancer_backend_up{backend="10.244.1.2:8080",service="web"} 0`)
	require.Contains(t, w.get("/metrics"), `loadbalancer_sorry_in_use{service="web"} 1`)
	require.Contains(t, w.get("/backends"), "connection refused")
	require.Contains(t, w.get("/backends"),
		`"service":"web","backend":"10.244.1.3:8080","state":"in use","sorry":true`)
	require.Regexp(t, `level=WARN msg=check target="?tcp 10.244.1.2:8080"? state=down `+
		`services=\[web\] error=`, w.log.String())
	require.Regexp(t, `(?s)level=WARN msg="no backend is up: sorry servers stand in" service=web `+
		`servers=\[10.244.1.3:8080\].*msg="backends are up again: sorry servers are not used" `+
		`service=web.*sorry servers stand in`, w.log.String())
	require.Contains(t, w.get("/"), "loadbalancer/web")
	require.Contains(t, w.get("/healthz"), `"healthy":true`)
	require.Contains(t, w.get("/livez"), `"healthy":true`)
	promised.Check(t, "../..", "loadbalancer", w.get("/metrics"))
}

// A backend that passes its checks but does not answer clients is out until it answers. The checks
// do not let in a backend that the follower has taken out, nor the follower a backend that the
// checks have taken out.
func TestBackendsThatDoNotAnswerClientsAreLeftOut(t *testing.T) {
	t.Parallel()
	for how, c := range map[string]struct {
		args  []string
		field string
	}{
		"flag": {[]string{"-eject-silent"}, ""},
		"file": {nil, "  silentEndpoints: eject\n"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := w.serve(0)
			w.serve(1)
			var asked []*netnstest.Server
			for _, p := range w.Pods[:2] {
				asked = append(asked, must.OK(p.NS.Serve(p.Name, servicemodel.TCP,
					netip.AddrPortFrom(p.IPv4, 8081)))(t))
			}

			w.write("%s", strings.Replace(quick, "type: tcp,", "type: tcp, port: 8081,", 1)+c.field+
				"  backends: [{address: 10.244.1.1:8080}, {address: 10.244.1.2:8080}]")
			w.start(c.args...)
			w.answers("pod1 pod2")
			require.NoError(t, first.Close())
			w.answers("pod2")
			w.soon(func() bool {
				return strings.Contains(w.get("/backends"), "unanswered in")
			}, "it is silent")

			require.NotContains(t, w.get("/backends"), `"state":"down"`)
			require.Contains(t, w.get("/metrics"),
				`loadbalancer_backend_up{backend="10.244.1.1:8080",service="web"} 0`)

			require.NoError(t, asked[0].Close())
			w.soon(func() bool { return strings.Contains(w.get("/backends"), "down") }, "it fails")
			w.serve(0)
			w.soon(func() bool {
				return !strings.Contains(w.get("/backends"), "unanswered in")
			}, "it answers")

			require.Equal(t, "pod2", w.answer())
			asked[0] = must.OK(w.Pods[0].NS.Serve("pod1", servicemodel.TCP,
				netip.AddrPortFrom(w.Pods[0].IPv4, 8081)))(t)
			w.answers("pod1 pod2")
		})
	}
}

// A killed program leaves the kernel as it is. The next program adopts the contents without a
// check: connections continue, and a backend that was out stays out.
func TestKilledAndStartedAgainIsInvisible(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(0)
	w.serve(1)
	w.write(quick + `  backends:
  - address: 10.244.1.1:8080
  - address: 10.244.1.2:8080
  - address: 10.244.1.3:8080`)
	w.start()
	w.answers("pod1 pod2")
	conns := w.connect(20)
	for range 3 {
		w.kill()
		require.Equal(t, "pod1 pod2", w.answer())
		w.start()
		for range 10 { // while the program starts
			require.Equal(t, "pod1 pod2", w.answer())
		}
		w.soon(func() bool {
			_, err := nstest.Get(w.Node.NS, "127.0.0.1:9095/healthz")
			return err == nil
		}, "it runs")

		require.Equal(t, "pod1 pod2", w.answer())
	}

	require.Zero(t, conns.Ping(time.Minute).Lost())
	require.NoError(t, w.program.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-w.ended)
	require.Equal(t, "pod1 pod2", w.answer())
}

// Nothing is in the kernel before the program has its address.
func TestAnAddressThatIsTakenLeavesTheKernelAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write(quick + "  backends: [{address: 10.244.1.1:8080}]")
	require.NoError(t, w.Node.NS.Do(func() error {
		taken, err := net.Listen("tcp", "127.0.0.1:9095")
		if err == nil {
			t.Cleanup(func() { taken.Close() })
		}
		return err
	}))

	for listen, want := range map[string]string{"127.0.0.1:9095": "address already in use",
		"8080": "missing port in address"} {
		w.start("-listen", listen)
		require.Error(t, <-w.ended)
		w.soon(func() bool { return strings.Contains(w.log.String(), want) }, want)
	}

	require.Empty(t, nstest.Run(t, w.Node.NS, "nft list tables"))
}

// A reload applies the changes and loses no connection. A broken file changes nothing.
func TestReloadLosesNoConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for pod := range 3 {
		w.serve(pod)
	}
	w.write(quick + "  backends: [{address: 10.244.1.1:8080}]")
	w.start()
	w.answers("pod1")
	conns := w.connect(20)
	w.write(quick + "  backends: [{address: 10.244.1.2:8080}, {address: 10.244.1.3:8080}]")
	w.reload(taken)
	w.answers("pod2 pod3")

	w.write(quick + "  backends:\n  - {address: 10.244.1.2:8080, wait: 3}")
	w.reload(`lb.yaml:7: services[0].backends[0].wait: no such field`)
	w.write(quick + "  scheduler: sed\n  backends: [{address: 10.244.1.2:8080}]")
	w.reload(`lb.yaml:6: services[0].scheduler: nftables cannot express`)
	w.write("services:\n")
	w.reload(`lb.yaml:1: services: holds no service`)
	require.Equal(t, "pod2 pod3", w.answer())
	require.Zero(t, conns.Ping(time.Minute).Lost())
	text := w.get("/metrics")
	require.Contains(t, text, `loadbalancer_reloads_total{result="broken"} 3`)
	require.Contains(t, text, "\nkernlb_input_problems 1\n")
	require.Contains(t, w.get("/healthz"), `"problems":["`)

	w.write(quick + "  backends: [{address: 10.244.1.1:8080}]")
	w.reload(taken)
	w.answers("pod1")
	require.Zero(t, conns.Ping(time.Minute).Lost())
}

// Connections to a draining backend continue for the time in the file, and are then cut. New
// connections go to other backends at once.
func TestDrainedBackendsKeepTheirConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(0)
	w.serve(1)
	w.write(quick + `  backends: [{address: 10.244.1.1:8080}, {address: 10.244.1.2:8080}]`)
	w.start()
	w.answers("pod1 pod2")
	conns := w.connect(20)
	on := conns.Servers()["pod1"]
	require.NotZero(t, on)
	w.write(quick + `  backends:
  - {address: 10.244.1.1:8080, weight: 0}
  - {address: 10.244.1.2:8080}`)
	w.reload(taken)
	w.answers("pod2")
	require.Zero(t, conns.Ping(time.Minute).Lost())
	w.write(quick + `  backends: [{address: 10.244.1.1:8080}, {address: 10.244.1.2:8080}]`)
	w.reload(taken)
	w.answers("pod1 pod2")
	w.write(quick + `  connections: 1s
  backends: [{address: 10.244.1.2:8080}]`)
	w.reload(taken)
	lost := 0
	w.soon(func() bool {
		lost += conns.Ping(30 * time.Second).Lost()
		return lost >= on
	}, "pod1's are cut")

	require.Equal(t, on, lost)
	require.Equal(t, "pod2", w.answer())
}

// serveHTTP serves in a pod: 200 if a request is right, else 503.
func (w *world) serveHTTP(pod int, port uint16, right func(*http.Request) bool) *http.Server {
	w.Helper()
	p := w.Pods[pod]
	var l net.Listener
	require.NoError(w, p.NS.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(p.IPv4, port).String())
		return err
	}))

	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !right(r) {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	go func() { _ = s.Serve(l) }()
	w.Cleanup(func() { _ = s.Close() })
	return s
}

// The program binds addresses to a device as the file says. It removes them when they leave the
// file, even if it was killed in between. It leaves addresses of other programs alone.
func TestAddressesAreBoundToDevices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(0)
	bound := func() (out string) {
		text := nstest.Run(t, w.Node.NS, "ip -o address show dev lo")
		for _, a := range []string{"203.0.113.10/32", "2001:db8::10/128", "203.0.113.20/32"} {
			if strings.Contains(text, " "+a+" ") {
				out += a + " "
			}
		}

		return out
	}

	nstest.Run(t, w.Node.NS, "ip address add 203.0.113.20/32 dev lo")
	const text = `services:
- name: web
  addresses: [203.0.113.10%s]
  port: 80
  device: lo
  backends: [{address: 10.244.1.1:8080}%s]
`
	w.write(text, `, "2001:db8::10", 203.0.113.20`, `, {address: "[fd00:10:244:1::1]:8080"}`)
	w.start()
	w.soon(func() bool {
		return bound() == "203.0.113.10/32 2001:db8::10/128 203.0.113.20/32 "
	}, "all are bound")
	w.answers("pod1")
	w.kill()
	w.write(text, "", "")
	w.start()
	w.soon(func() bool { return bound() == "203.0.113.10/32 203.0.113.20/32 " }, "one is released")
	w.kill()
	w.start("-cleanup")
	require.NoError(t, <-w.ended)
	require.Equal(t, "203.0.113.20/32 ", bound())
	require.Equal(t, "answered internet", w.answer(), "nothing is balanced any more")
}

// iptables, which every kernel has, gives the same results. The log names a device that is
// gone.
func TestIPTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve(0)
	w.serve(1)
	nstest.Run(t, w.Node.NS, "ip link add gone0 type veth")
	w.write(quick + `  device: gone0
  backends: [{address: 10.244.1.1:8080}, {address: 10.244.1.2:8080}]`)
	w.start("-backend", "iptables")
	w.answers("pod1 pod2")
	nstest.Run(t, w.Node.NS, "ip link delete gone0")
	w.soon(func() bool { return strings.Contains(w.log.String(), "device gone0") }, "it is said")
	require.NoError(t, first.Close())
	w.answers("pod2")
}

// A start with another backend removes the services of the earlier one. Only one process writes.
// The cleanup removes what every backend has.
func TestAnotherBackendLeavesNoOldServices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(0)
	w.serve(1)
	w.write(quick + "  backends: [{address: 10.244.1.1:8080}]")
	w.start()
	w.answers("pod1")
	conns := w.connect(5)
	first, ended := w.program, w.ended
	says := fmt.Sprintf("another loadbalancer runs here (process %d)", first.Process.Pid)
	for i, args := range [][]string{{"-listen", "127.0.0.1:9096"}, {"-cleanup"}} {
		w.start(args...)
		require.Error(t, <-w.ended)
		require.Equal(t, i+1, strings.Count(w.log.String(), says))
	}

	require.Equal(t, "pod1", w.answer())
	require.NoError(t, first.Process.Kill())
	<-ended
	before, next := "nftables", []string{"iptables"}
	if os.Getenv("KERNLB_VM") != "" { // it has IPVS
		next = append(next, "ipvs", "nftables", "ipvs", "iptables")
	}
	for i, backend := range next {
		w.write("%s  backends: [{address: 10.244.1.%d:8080}]", quick, 2-i%2)
		w.start("-backend", backend)
		w.answers(fmt.Sprintf("pod%d", 2-i%2))
		removed := fmt.Sprintf(`level=INFO msg="removed from the kernel" backend=%s`, before)
		w.soon(func() bool { return strings.Contains(w.log.String(), removed) }, removed)
		require.Equal(t, i+1, strings.Count(w.log.String(), "removed from the kernel"))
		before = backend
		w.kill()
	}

	require.Zero(t, conns.Ping(time.Minute).Lost())
	require.Contains(t, nstest.Run(t, w.Node.NS, "nft list ruleset"), "203.0.113.10")
	w.start("-cleanup")
	require.NoError(t, <-w.ended)
	require.NotContains(t, nstest.Run(t, w.Node.NS, "nft list ruleset"), "203.0.113.10")
}

// The check and the start say what keeps the node from carrying connections.
func TestANodeThatDoesNotForwardIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nstest.Run(t, w.Node.NS, "sysctl -qw net.ipv4.ip_forward=0")
	w.write(quick + "  backends: [{address: 10.244.1.1:8080}]")
	w.start("-check")
	require.NoError(t, <-w.ended)
	const do = "sysctl -w net.ipv4.ip_forward=1"
	require.Contains(t, w.log.String(), "warning: this node: IPv4 forwarding is off: ")
	require.Contains(t, w.log.String(), do)
	w.start()
	w.soon(func() bool { return strings.Contains(w.log.String(), `do="`+do) }, "the log says it")
}

// When a backend fails, a UDP client that keeps sending moves to another backend.
func TestUDPClientsAreMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	checked := []*netnstest.Server{w.serve(0), w.serve(1)}
	for _, p := range w.Pods[:2] {
		must.OK(p.NS.Serve(p.Name, servicemodel.UDP, netip.AddrPortFrom(p.IPv4, 53)))(t)
	}
	w.write(`services:
- name: dns
  addresses: [203.0.113.10]
  port: 53
  protocol: udp
  checks: [{type: tcp, port: 8080, interval: 10ms, timeout: 30s}]
  backends: [{address: 10.244.1.1:53}, {address: 10.244.1.2:53}]
`)
	w.start()
	client := netnstest.Probe{From: w.Outside[0], Proto: servicemodel.UDP, SourcePort: 20000,
		To: netip.AddrPortFrom(vip.Addr(), 53)}
	var first string
	w.soon(func() bool {
		first = client.Send(t.Context()).Server
		return first == "pod1" || first == "pod2"
	}, "it answers")

	require.NoError(t, checked[map[string]int{"pod1": 0, "pod2": 1}[first]].Close())
	other := map[string]string{"pod1": "pod2", "pod2": "pod1"}[first]
	w.soon(func() bool { return client.Send(t.Context()).Server == other }, "the other answers")
}

// The service manager learns when the kernel holds the services, that the program is alive, and
// that it ends.
func TestTheServiceManagerIsTold(t *testing.T) {
	w := newWorld(t)
	w.serve(0)
	socket := filepath.Join(t.TempDir(), "notify")
	conn := must.OK(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	w.write(quick + "  backends: [{address: 10.244.1.1:8080}]")
	w.start()
	told := func() string {
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		b := make([]byte, 4096)
		n, err := conn.Read(b)
		require.NoError(t, err, w.log)
		return string(b[:n])
	}

	const alive, ready, stopping = "WATCHDOG=1", "READY=1", "STOPPING=1"
	seen := []string{told(), told()}
	require.ElementsMatch(t, []string{alive, ready}, seen)
	require.Contains(t, w.get("/healthz"), `"healthy":true`)
	require.Equal(t, alive, told())
	require.NoError(t, w.program.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-w.ended)
	require.Equal(t, stopping, told())
}

// systemd-analyze finds nothing wrong with the units of the programs.
func TestUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	dir := t.TempDir()
	for _, name := range []string{"loadbalancer", "../kernlb/kernlb"} {
		// The programs must exist, and here they are not installed.
		text := strings.ReplaceAll(string(must.OK(os.ReadFile(name+".service"))(t)),
			"/usr/local/bin/"+filepath.Base(name), "/bin/true")
		file := filepath.Join(dir, filepath.Base(name)+".service")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		out, err := exec.Command(analyze, "verify", file).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Empty(t, string(out))
	}
}
