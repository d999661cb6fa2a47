package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// asProgram is an environment variable that turns the test binary into the program. With the value
// "memory" its API server is in memory, and gets its objects over standard input.
const asProgram = "KERNLB_TEST_AS_KUBEPROXY"

// patience is the maximum wait of a test.
var patience = time.Minute

func TestMain(m *testing.M) {
	mode := os.Getenv(asProgram)
	if mode == "" {
		netnstest.Main(m)
		return
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	act := start
	if mode == "memory" {
		act = startInMemory
	}
	if err := act(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type objects struct {
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
}

// startInMemory is start with an API server in memory.
func startInMemory(ctx context.Context, args []string) error {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	log, err := o.logger()
	if err != nil {
		return err
	}
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Spec: corev1.NodeSpec{PodCIDRs: []string{netnstest.Net.NodeCIDRv4}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: netnstest.Net.NodeIPv4}}}})
	go func() {
		d := json.NewDecoder(os.Stdin)
		for {
			var o objects
			if d.Decode(&o) != nil {
				return
			}
			for _, s := range o.Services {
				_ = client.Tracker().Add(s)
			}
			for _, s := range o.Slices {
				_ = client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name,
					metav1.DeleteOptions{})
				_ = client.Tracker().Add(s)
			}
		}
	}()

	return run(ctx, o, client, log)
}

// process is a program that runs in the namespace of a node.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *json.Encoder
	out string // the file that it writes to
}

// spawn starts a program in a namespace. The end of the test kills it.
func spawn(t *testing.T, ns *netnstest.NS, env string, name string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env, "RUNTIME_DIRECTORY="+t.TempDir())
	out := ok(os.CreateTemp(t.TempDir(), "log"))(t)
	cmd.Stdout, cmd.Stderr = out, out
	in := ok(cmd.StdinPipe())(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, ns.Do(cmd.Start))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text, _ := os.ReadFile(out.Name()); t.Failed() {
			t.Logf("%s %q wrote:\n%s", name, args, text[max(0, len(text)-2000):])
		}
		out.Close()
	})

	return &process{t, cmd, json.NewEncoder(in), out.Name()}
}

// self is the test binary.
const self = "/proc/self/exe"

// executable is the test binary, for programs that start it.
func executable(t *testing.T) string {
	t.Helper()
	return ok(os.Executable())(t)
}

// stop ends the program like a kubelet, and requires that it succeeds.
func (p *process) stop() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(p.t, p.cmd.Wait())
}

// end ends a program that may die of the signal, like kube-proxy.
func (p *process) end() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	_ = p.cmd.Wait()
}

// fails waits until the program has ended with an error.
func (p *process) fails(want string) {
	p.t.Helper()
	require.Error(p.t, p.cmd.Wait())
	text := ok(os.ReadFile(p.out))(p.t)
	require.Contains(p.t, string(text), want)
}

// says waits until the program has written a text a number of times.
func (p *process) says(want string, times int) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		text, err := os.ReadFile(p.out)
		return err == nil && strings.Count(string(text), want) == times
	}, patience, 20*time.Millisecond, "%d times %q", times, want)
}

// answers waits until a connection has an outcome, such as "answered pod1" or "refused ", and
// returns it.
func answers(t *testing.T, from *netnstest.Host, to, want string) (got netnstest.Outcome) {
	t.Helper()
	require.Eventually(t, func() bool {
		got = netnstest.Probe{From: from, Proto: servicemodel.TCP,
			To: netip.MustParseAddrPort(to)}.Send(t.Context())
		return string(got.Kind)+" "+got.Server == want
	}, patience, 20*time.Millisecond, "%s from %s: want %s", to, from.Name, want)

	return got
}

// ruleset returns the ruleset of a namespace, or of one family, "ip" or "ip6".
func ruleset(t *testing.T, ns *netnstest.NS, family ...string) string {
	t.Helper()
	return nstest.Run(t, ns, "nft list ruleset "+strings.Join(family, " "))
}

var web = metav1.ObjectMeta{Namespace: "default", Name: "web",
	Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}

func service() *corev1.Service {
	local := corev1.ServiceExternalTrafficPolicyLocal
	return &corev1.Service{ObjectMeta: web, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: local,
		HealthCheckNodePort: 32000, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{
			{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}}}}
}

func slice(pods ...*netnstest.Host) *discoveryv1.EndpointSlice {
	name, port, protocol, node := "", int32(8080), corev1.ProtocolTCP, "node1"
	s := &discoveryv1.EndpointSlice{ObjectMeta: web, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}}
	for _, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: &node,
			Addresses: []string{p.IPv4.String()}})
	}

	return s
}
