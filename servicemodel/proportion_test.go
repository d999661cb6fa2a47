package servicemodel_test

import (
	"net/netip"
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/test/proportion"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// Resolving and comparing costs as much as the change.
func TestWorkIsProportionalToTheChange(t *testing.T) {
	(&proportion.Law{
		// A pool is an array. It is sorted, arranged, and copied with its predecessor. A service
		// port has two pools if it has a policy Local.
		Limits: proportion.Limits{Endpoint: proportion.Cost{Bytes: 400}},
		Exceptions: []proportion.Exception{{Fields: []string{"service.Prefer"},
			Because: "the shares of all endpoints follow how many of each level are ready, and " +
				"their weights",
			Limits: proportion.Limits{Endpoint: proportion.Cost{Elements: 1}}}},
		Hold: func(_ testing.TB, s sm.State) proportion.Subject {
			table, err := sm.Resolve(nil, s)
			if err != nil {
				return nil
			}
			return func(to sm.State) func() backends.Stats {
				return func() (n backends.Stats) {
					next, err := sm.Resolve(table, to)
					if err != nil {
						return n
					}
					c := sm.Diff(table, next)
					for _, p := range c.Pools {
						if p.Old != nil && p.New != nil {
							for range p.New.SlotsSince(p.Old) {
								n.Elements++
							}
						}
					}

					n.Elements += len(c.Frontends) + len(c.ClusterIPs) + len(c.Hairpins)
					return n
				}
			}
		},
	}).Holds(t)
}

// A program may ask about each packet. The answer has the endpoints that may get the packet.
func TestADecisionCostsALittleForEachEndpoint(t *testing.T) {
	node := sm.Locality{netip.MustParseAddr("192.0.2.1")}
	for name, to := range map[string]string{"a service": "10.96.0.1:80",
		"a small service": "10.100.0.9:80", "a node port": "192.0.2.1:30080",
		"none": "198.51.100.1:80"} {
		t.Run(name, func(t *testing.T) {
			packet := sm.Packet{Src: netip.MustParseAddrPort("198.51.100.7:4000"),
				Dst: netip.MustParseAddrPort(to), Protocol: sm.TCP}
			var each, explained proportion.Cost
			if name == "a service" || name == "a node port" {
				each.Bytes, explained.Objects, explained.Bytes = 200, 5, 1000
			}
			proportion.Calls(t, each, func(n int) func() {
				table := ok(sm.Resolve(nil, proportion.Many(n, func(*sm.Service) {})))(t)
				return func() { table.Decide(packet, node) }
			})

			proportion.Calls(t, explained, func(n int) func() {
				table := ok(sm.Resolve(nil, proportion.Many(n, func(*sm.Service) {})))(t)
				return func() { table.Trace(packet, node) }
			})
		})
	}
}
