package dataplanetest_test

import (
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/dataplanetest"
	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestAScenarioOfOnesOwn shows how a program that embeds kernlb tests its own states with packets.
func TestAScenarioOfOnesOwn(t *testing.T) {
	t.Parallel()
	name := servicemodel.Name{Namespace: "shop", Name: "cart"}
	state := servicemodel.State{}.
		WithNode(servicemodel.Node{Name: "this"}).
		WithService(&servicemodel.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.30")},
			Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}},
		}).
		WithEndpoints(name, []servicemodel.Endpoint{{
			Addr: netip.MustParseAddr("10.244.1.2"), Node: "this",
			Ports: []servicemodel.EndpointPort{
				{Protocol: servicemodel.TCP, Port: scenario.PortA}},
		}})
	to := netip.MustParseAddrPort("10.96.0.30:80")
	dataplanetest.RunScenarios(t, scenario.Backend{
		Open: func(ns netns.Namespace) (backends.Backend, error) {
			return nftables.New(&nftables.Config{NetNS: ns})
		},
	}, scenario.Scenario{
		Name: "pods reach the cart, nobody reaches it without endpoints",
		Steps: []scenario.Step{
			{State: state, Checks: []scenario.Check{
				{From: "pod1", Proto: servicemodel.TCP, To: to, Want: scenario.Want{
					Outcome: servicemodel.Balanced, Servers: []string{"pod2/8080"}}},
				{From: "pod2", Proto: servicemodel.TCP, To: to, Want: scenario.Want{
					Outcome: servicemodel.Balanced, Servers: []string{"pod2/8080"},
					Masquerade: scenario.NodeSource}}, // to itself, and back through the node
			}},
			{State: state.WithEndpoints(name, nil), Checks: []scenario.Check{
				{From: "pod1", Proto: servicemodel.TCP, To: to,
					Want: scenario.Want{Outcome: servicemodel.Rejected, Reset: true}},
			}},
		},
	})
}
