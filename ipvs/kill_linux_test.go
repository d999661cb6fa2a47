package ipvs_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// Starting a process takes a second in an emulated machine.
var kills = flag.Int("kills", 40, "how often a process is killed")

// withoutDraining is the backend, except that endpoints are removed at once.
var withoutDraining = dataplanetest.Backend{Require: needIPVS, OwnConnections: true,
	Open: func(netns int) (dataplane.Backend, error) {
		return ipvs.New(&ipvs.Config{NetNS: netns, DrainLimit: -1})
	}}

// podStates are states of one service with two ports. Their endpoints overlap: one endpoint is in
// all states.
func podStates() []servicemodel.State {
	svc := web(func(s *servicemodel.Service) {
		s.Ports = append(s.Ports,
			servicemodel.ServicePort{Name: "more", Protocol: servicemodel.TCP, Port: 81})
		s.Ports[0].Name = "http"
	})
	ports := []servicemodel.EndpointPort{
		{Name: "http", Protocol: servicemodel.TCP, Port: 8080},
		{Name: "more", Protocol: servicemodel.TCP, Port: 8081},
	}
	var states []servicemodel.State
	for i := range 9 {
		pods := []string{"10.244.9.1"}
		for j := range 4 {
			pods = append(pods, fmt.Sprintf("10.244.1.%d", (i+j)%9+1))
		}
		var l []servicemodel.Endpoint
		for _, p := range pods {
			l = append(l, servicemodel.Endpoint{Addr: netip.MustParseAddr(p), Ready: true,
				Serving: true, Ports: ports})
		}
		states = append(states, servicemodel.State{}.WithNode(servicemodel.Node{Name: "this"}).
			WithService(svc).WithEndpoints(svc.Name, l))
	}
	return states
}

// A process that applies one state after the other is killed at any moment. Each virtual server has
// the endpoints that both the old and the new state have, and none that neither has. The next apply
// results in its state. Now and then someone flushes the ruleset or IPVS, or another process
// applies as well.
func TestKernelProcessesAreKilled(t *testing.T) {
	dataplanetest.Killed(t, withoutDraining, podStates(), dataplanetest.KilledOptions{
		Kills: *kills, Delay: 60 * time.Millisecond, Damage: flushAll, Between: between})
}

// flushAll deletes all rules, or all virtual servers.
func flushAll(ns *netnstest.NS, rng *rand.Rand) error {
	command := []string{"nft flush ruleset", "ipvsadm -C"}[rng.IntN(2)]
	return ns.Do(func() error {
		words := strings.Fields(command)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return nil
	})
}

// between requires that each IPv4 virtual server has all endpoints that all states have, and none
// that no state has.
func between(ns *netnstest.NS, states []servicemodel.State) error {
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
	vs, err := ipvsnl.Dial(ctx, &rawnl.Config{NetNS: ns.Fd()})
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
