package ipvs_test

import (
	"bufio"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/netnstest"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// A process takes a second to start in an emulated machine.
var kills = flag.Int("kills", 40, "how often a process is killed")

// envChild makes the test binary a program that applies states: its number, and how many.
const envChild = "KERNLB_TEST_IPVS_CHILD"

// childPods are the endpoints of the i-th state of a child.
func childPods(child, i int) []string {
	pods := []string{"10.244.9.1"}
	for j := range 4 {
		pods = append(pods, fmt.Sprintf("10.244.%d.%d", child, (i+j)%9+1))
	}
	return pods
}

// TestChildThatApplies is not a test, but the program that is killed.
func TestChildThatApplies(t *testing.T) {
	child, times, ok := strings.Cut(os.Getenv(envChild), " ")
	if !ok {
		t.Skip("it is a part of others")
	}
	number, _ := strconv.Atoi(child)
	count, _ := strconv.Atoi(times)
	b, err := ipvs.New(&ipvs.Config{NetNS: 3, DrainLimit: -1})
	require.NoError(t, err)
	e := dataplane.New(b, nil)
	for i := range count {
		fmt.Printf("begin %d\n", i)
		_, err := e.Apply(t.Context(), podState(childPods(number, i)))
		require.NoError(t, err)
	}
}

// startChild starts the program in the namespace of the node.
func startChild(t *testing.T, ns *netnstest.NS, number, times int) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(ns.Fd()), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	file := os.NewFile(uintptr(fd), "network namespace")
	defer file.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChildThatApplies$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", envChild, number, times))
	cmd.ExtraFiles = []*os.File{file}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, bufio.NewScanner(out)
}

// podState is a state of one service of two ports with the endpoints.
func podState(pods []string) servicemodel.State {
	svc := web(func(s *servicemodel.Service) {
		s.Ports = append(s.Ports,
			servicemodel.ServicePort{Name: "more", Protocol: servicemodel.TCP, Port: 81})
		s.Ports[0].Name = "http"
	})
	var l []servicemodel.Endpoint
	for _, p := range pods {
		l = append(l,
			servicemodel.Endpoint{Addr: netip.MustParseAddr(p), Ready: true, Serving: true,
				Ports: []servicemodel.EndpointPort{
					{Name: "http", Protocol: servicemodel.TCP, Port: 8080}, {Name: "more",
						Protocol: servicemodel.TCP, Port: 8081}}})
	}
	return servicemodel.State{}.WithNode(servicemodel.Node{Name: "this"}).WithService(svc).
		WithEndpoints(svc.Name, l)
}

// held returns the endpoints of each virtual server of IPv4.
func (k *kernel) held() map[string][]string {
	k.t.Helper()
	all, err := k.vs.Services(k.t.Context())
	require.NoError(k.t, err)
	m := map[string][]string{}
	for _, s := range all {
		if s.Addr.Is6() {
			continue
		}
		list, err := k.vs.Destinations(k.t.Context(), s.ServiceKey)
		require.NoError(k.t, err)
		for _, d := range list {
			m[s.ServiceKey.String()] = append(m[s.ServiceKey.String()], d.Addr.String())
		}
	}
	return m
}

// A process that applies one state after the other is killed at any moment. Each virtual server has
// what both the state before and the one that was being applied have, and nothing that neither has;
// and the next apply ends at its state. Now and then somebody flushes the ruleset or IPVS, or
// another process applies as well.
func TestKernelProcessesAreKilled(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{DrainLimit: -1})
	rest := []string{"10.244.9.1", "10.244.7.7"}
	states := map[int]int{}
	for n := range *kills {
		k.apply(podState(rest))
		cmd, lines := startChild(t, k.Node.NS, 1, 1000)
		var second *exec.Cmd
		if n%4 == 3 {
			second, _ = startChild(t, k.Node.NS, 2, 1000)
		}
		require.True(t, lines.Scan())
		last := make(chan int, 1)
		go func() {
			i := 0
			for lines.Scan() {
				i, _ = strconv.Atoi(strings.TrimPrefix(lines.Text(), "begin "))
			}
			last <- i
		}()
		time.Sleep(time.Duration(rand.IntN(120)) * time.Millisecond)
		if n%4 == 2 {
			k.run([][]string{{"nft", "flush", "ruleset"}, {"ipvsadm", "-C"}}[n/4%2]...)
		}
		require.NoError(t, cmd.Process.Kill())
		if second != nil {
			require.NoError(t, second.Process.Kill())
			second.Wait() //nolint:errcheck // it was killed
		}
		i := <-last
		cmd.Wait() //nolint:errcheck // it was killed
		states[min(i, 3)]++
		if n%4 < 2 {
			before, now := rest, childPods(1, i)
			if i > 0 {
				before = childPods(1, i-1)
			}
			k.requireBetween(before, now)
		}
	}
	t.Logf("killed in the state: %v", states)
	want := podState(rest)
	k.apply(want)
	k.restart(ipvs.Config{DrainLimit: -1})
	r := k.apply(want)
	require.Empty(t, r.Drift)
	require.Zero(t, r.Messages)
	for vs, pods := range k.held() {
		slices.Sort(pods)
		require.Equal(t, []string{"10.244.7.7", "10.244.9.1"}, pods, vs)
	}
}

// requireBetween requires that what each virtual server has lies between two lists of endpoints.
func (k *kernel) requireBetween(before, now []string) {
	k.t.Helper()
	held := k.held()
	require.NotEmpty(k.t, held)
	for _, vs := range slices.Sorted(maps.Keys(held)) {
		for _, p := range held[vs] {
			require.True(k.t, slices.Contains(before, p) || slices.Contains(now, p),
				"%s has %s: %v, %v", vs, p, before, now)
		}
		for _, p := range before {
			if slices.Contains(now, p) {
				require.Contains(k.t, held[vs], p, vs)
			}
		}
	}
}

// Two processes that apply at the same time succeed each time, and what is there at the end is the
// last state of one of them.
func TestKernelProcessesAlternate(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{DrainLimit: -1})
	const times = 40
	var cmds []*exec.Cmd
	for n := range 2 {
		cmd, lines := startChild(t, k.Node.NS, n+1, times)
		go func() {
			for lines.Scan() { // so that the child can write
			}
		}()
		cmds = append(cmds, cmd)
	}
	for _, cmd := range cmds {
		require.NoError(t, cmd.Wait())
	}
	k.restart(ipvs.Config{DrainLimit: -1})
	var messages []int
	for n := range 2 {
		p, err := k.engine.Plan(t.Context(), podState(childPods(n+1, times-1)))
		require.NoError(t, err)
		require.Empty(t, p.Drift)
		messages = append(messages, p.Plan.Stats().Messages)
	}
	require.Contains(t, messages, 0)
}
