package ipvs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/ipvs"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func open(ns netns.Namespace) (backends.Backend, error) {
	b, err := ipvs.New(&ipvs.Config{NetNS: ns})
	if err != nil {
		return nil, err
	}
	return b, steady(ns)
}

// steady prevents Linux 7.x from resizing its table of connections. During a resize, the kernel may
// not find the remembered endpoint of a client with session affinity, and the client gets a
// different endpoint; see the limits in the package documentation. Older kernels have a table of a
// fixed size.
func steady(at netns.Namespace) error {
	ns, err := threadns.Open(at)
	if err != nil {
		return err
	}
	defer ns.Close()
	err = ns.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/vs/conn_lfactor", []byte("8"), 0)
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// loading is held while a backend is opened for the first time: Linux 5.10 refuses a protocol while
// another process makes the kernel load its module.
var loading sync.Mutex

// needIPVS skips a test on a kernel without IPVS.
func needIPVS(t *testing.T) {
	t.Helper()
	netnstest.Require(t)
	loading.Lock()
	defer loading.Unlock()
	ns, err := netnstest.NewNS("probe")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	b, err := open(ns.NetNS())
	if errors.Is(err, kernelerr.ErrMissingModule) {
		t.Skipf("needs a kernel with the module ip_vs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// underTest is the backend for the tests of package dataplanetest.
var underTest = dataplanetest.Backend{Open: open, Require: needIPVS, OwnConnections: true,
	Ranges: true, MasqueradeIPs: true}

func TestConformance(t *testing.T) {
	t.Parallel()
	dataplanetest.Run(t, underTest)
}

func TestRandomPackets(t *testing.T) {
	t.Parallel()
	dataplanetest.Random(t, underTest, 2000)
}

// One value for each field, because all values would take minutes in an emulated machine. The test
// runs alone: other tests delete virtual servers, and then an engine reads, whatever the namespace.
func TestEveryField(t *testing.T) {
	dataplanetest.EveryField(t, underTest, dataplanetest.FieldsOptions{OneValue: true, Ranges: true,
		MasqueradeIPs: true})
}

// withoutDraining is the backend, except that endpoints are removed at once.
var withoutDraining = dataplanetest.Backend{Require: needIPVS, OwnConnections: true,
	Open: func(ns netns.Namespace) (backends.Backend, error) {
		return ipvs.New(&ipvs.Config{NetNS: ns, DrainLimit: -1})
	}}

// podStates are states of one service with two ports. Their endpoints overlap: one endpoint is in
// all states.
func podStates() []sm.State {
	svc := web(func(s *sm.Service) {
		s.Ports = append(s.Ports, sm.ServicePort{Name: "more", Protocol: sm.TCP, Port: 81})
		s.Ports[0].Name = "http"
	})
	ports := []sm.EndpointPort{
		{Name: "http", Protocol: sm.TCP, Port: 8080},
		{Name: "more", Protocol: sm.TCP, Port: 8081},
	}
	var states []sm.State
	for i := range 9 {
		pods := []string{"10.244.9.1"}
		for j := range 4 {
			pods = append(pods, fmt.Sprintf("10.244.1.%d", (i+j)%9+1))
		}
		var l []sm.Endpoint
		for _, p := range pods {
			l = append(l, sm.Endpoint{Addr: netip.MustParseAddr(p),
				Ports: ports})
		}

		states = append(states, sm.State{}.WithNode(sm.Node{Name: "this"}).
			WithService(svc).WithEndpoints(svc.Name, l))
	}

	return states
}

// A process that applies one state after the other is killed at any moment. Each virtual server has
// the endpoints that both the old and the new state have, and none that neither has. The next apply
// results in its state. Occasionally someone flushes the ruleset or IPVS, or another process also
// applies.
func TestKernelProcessesAreKilled(t *testing.T) {
	dataplanetest.Killed(t, withoutDraining, podStates(), dataplanetest.KilledOptions{
		Delay: 60 * time.Millisecond, Damage: []string{"nft flush ruleset", "ipvsadm -C"},
		Between: between})
}

func TestEndures(t *testing.T) { dataplanetest.Endures(t, underTest, podStates()) }

func TestRolls(t *testing.T) { dataplanetest.Rolls(t, underTest) }

// between requires that each IPv4 virtual server has all endpoints that all states have, and none
// that no state has.
func between(ns *netnstest.NS, states []sm.State) error {
	held, err := heldIn(ns)
	if err != nil {
		return err
	}
	of := map[string]int{} // number of states with this endpoint
	for _, s := range states {
		for _, e := range s.Endpoints(web().Name) {
			of[e.Addr.String()]++
		}
	}

	for vs, pods := range held {
		for _, p := range pods {
			if of[p] == 0 {
				return fmt.Errorf("%s has %s, which is in no state", vs, p)
			}
		}

		for p, n := range of {
			if n == len(states) && !slices.Contains(pods, p) {
				return fmt.Errorf("%s lacks %s, which is in all states", vs, p)
			}
		}
	}

	return nil
}

// heldIn returns the endpoints of each virtual server of IPv4.
func heldIn(ns *netnstest.NS) (map[string][]string, error) {
	ctx := context.Background()
	vs, err := ipvsnl.Dial(ctx, &rawnl.Config{NetNS: ns.NetNS()})
	if err != nil {
		return nil, err
	}
	defer vs.Close()
	all, err := vs.Services(ctx)
	if err != nil {
		return nil, err
	}
	held := map[string][]string{}
	for _, s := range all {
		if s.Addr.Is6() {
			continue
		}
		list, err := vs.Destinations(ctx, s.ServiceKey)
		if err != nil {
			return nil, err
		}
		for _, d := range list {
			held[s.ServiceKey.String()] = append(held[s.ServiceKey.String()], d.Addr.String())
		}
	}

	return held, nil
}

// Processes that apply at the same time all succeed. In the end the kernel has the last state of
// one of them.
func TestKernelWritersTakeTurns(t *testing.T) {
	t.Parallel()
	dataplanetest.Writers(t, withoutDraining, slices.Repeat(podStates(), 8))
}

func TestKernelDeprived(t *testing.T) {
	t.Parallel()
	dataplanetest.Deprived(t, withoutDraining)
}

func TestKernelClockJumps(t *testing.T) { dataplanetest.ClockJumps(t, withoutDraining) }
