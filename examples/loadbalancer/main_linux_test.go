package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// asProgram makes the test binary the program, with these arguments.
const asProgram = "LOADBALANCER_ARGS"

func TestMain(m *testing.M) {
	if args := os.Getenv(asProgram); args != "" {
		os.Args = append([]string{"loadbalancer"}, strings.Fields(args)...)
		main()
		return
	}

	netnstest.Main(m)
}

// vip is the virtual address of tests.
var vip = netip.MustParseAddrPort("203.0.113.10:80")

// world is a network with a load balancer on its node.
type world struct {
	*testing.T
	*netnstest.Cluster
	file    string
	log     output
	program *exec.Cmd
	ended   chan error
}

// newWorld returns a network with three pods that serve on port 8080, unless told otherwise.
func newWorld(t *testing.T) *world {
	t.Helper()
	netnstest.Require(t)
	log := must.OK(os.CreateTemp(t.TempDir(), "log"))(t)
	t.Cleanup(func() { log.Close() })
	return &world{T: t, Cluster: netnstest.Start(t, netnstest.Options{}), log: output{log},
		file: filepath.Join(t.TempDir(), "lb.yaml")}
}

// output keeps the output of programs.
type output struct{ *os.File }

func (o output) String() string {
	text, _ := os.ReadFile(o.Name())
	return string(text)
}

// write writes the file.
func (w *world) write(format string, args ...any) {
	w.Helper()
	require.NoError(w, os.WriteFile(w.file, fmt.Appendf(nil, format, args...), 0o600))
}

// start runs the program on the node.
func (w *world) start(args ...string) {
	w.Helper()
	args = append([]string{"-config", w.file, "-listen", "127.0.0.1:9095"}, args...)
	w.program = exec.Command("/proc/self/exe")
	w.program.Env = append(os.Environ(), asProgram+"="+strings.Join(args, " "),
		"RUNTIME_DIRECTORY="+filepath.Dir(w.file))
	w.program.Stderr = w.log
	require.NoError(w, w.Node.NS.Do(w.program.Start))
	program, ended := w.program, make(chan error, 1)
	w.ended = ended
	go func() { ended <- program.Wait() }()
	w.Cleanup(func() {
		_ = program.Process.Kill()
		if w.Failed() {
			w.Log(w.log.String())
		}
	})
}

// kill kills the program with SIGKILL.
func (w *world) kill() {
	w.Helper()
	require.NoError(w, w.program.Process.Kill())
	<-w.ended
}

// reload makes the program read the file, and waits for a text in its log.
func (w *world) reload(says string) {
	w.Helper()
	before := strings.Count(w.log.String(), says)
	require.NoError(w, w.program.Process.Signal(syscall.SIGHUP))
	w.soon(func() bool { return strings.Count(w.log.String(), says) > before }, says)
}

const taken = "the file was read again"

// soon waits for a condition. The wait is long, because the machine may be very busy.
func (w *world) soon(ok func() bool, what string) {
	w.Helper()
	require.Eventually(w, ok, time.Minute, 5*time.Millisecond, what)
}

// serve makes a pod serve at port 8080.
func (w *world) serve(pod int) *netnstest.Server {
	w.Helper()
	p := w.Pods[pod]
	return must.OK(p.NS.Serve(p.Name, servicemodel.TCP, netip.AddrPortFrom(p.IPv4, 8080)))(w)
}

// answer returns the servers that answer 20 connections of two clients, each once, separated by
// spaces.
func (w *world) answer() string {
	probes := make([]netnstest.Probe, 20)
	for i := range probes {
		probes[i] = netnstest.Probe{From: w.Outside[i%len(w.Outside)], Proto: servicemodel.TCP,
			To: vip}
	}
	var seen []string
	for _, o := range netnstest.SendAll(w.Context(), probes) {
		if strings.HasPrefix(o.Server, "pod") {
			seen = append(seen, o.Server)
		} else {
			seen = append(seen, strings.TrimSpace(string(o.Kind)+" "+o.Server))
		}
	}

	slices.Sort(seen)
	return strings.Join(slices.Compact(seen), " ")
}

// answers waits until exactly these servers answer.
func (w *world) answers(who string) {
	w.Helper()
	w.soon(func() bool { return w.answer() == who }, who)
}

// connect opens connections through the load balancer.
func (w *world) connect(n int) *netnstest.Conns {
	w.Helper()
	c := must.OK(netnstest.OpenConns(w.Context(), w.Outside[0], vip, n))(w)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// get returns the program's HTTP answer on the node.
func (w *world) get(path string) string {
	w.Helper()
	return must.OK(nstest.Get(w.Node.NS, "127.0.0.1:9095"+path))(w)
}
