package iptables

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// A packet finds the first range that contains its port, whatever the number of ranges.
func TestPacketsFindTheFirstRange(t *testing.T) {
	t.Parallel()
	for _, m := range rangeMakers() {
		for _, n := range []int{1, 17, 300, 1000} {
			t.Run(fmt.Sprintf("%s, %d", m.name, n), func(t *testing.T) {
				t.Parallel()
				const seed = 3
				rng := rand.New(rand.NewPCG(seed, uint64(n)))
				d := newLayout("KUBE").tree(m.f, m.id)
				have := map[sm.FrontendKey]bool{}
				for range n {
					have[m.key(rng)] = true
				}
				w := &walker{chains: contents(d, grown(d, maps.Keys(have)))}
				for range 1000 {
					k := m.key(rng)
					k.EndPort = 0
					var all []sm.FrontendKey
					for o := range have {
						if o.Addr == k.Addr && o.Protocol == k.Protocol && o.Contains(k.Port) {
							all = append(all, o)
						}
					}

					require.Equal(t, len(all) > 0, w.walk(d.root, k), "seed %d: %s", seed, k)
					if len(all) > 0 {
						first := slices.MinFunc(all, sm.FrontendKey.CompareRange)
						require.Equal(t, leafRule(first)[0], *w.found, "seed %d: %s", seed, k)
					}
				}

				for name := range w.chains {
					require.LessOrEqual(t, len(name), maxChainName)
				}
			})
		}
	}
}

// rangeStory returns a service with a range of ports, and its changes.
func rangeStory() (names []string, states []sm.State) {
	add := func(name string, s sm.State) sm.State {
		names, states = append(names, name), append(states, s)
		return s
	}

	calls := &sm.Service{Name: svcName("calls"), ClusterIPs: must.Addrs("10.96.0.10"),
		LoadBalancerIPs: []sm.LoadBalancerIP{{Addr: must.Addrs("203.0.113.8")[0]}},
		Ports: []sm.ServicePort{{Name: "rtp", Protocol: sm.UDP, Port: 10000,
			EndPort: 20000}},
		SessionAffinity: sm.SessionAffinity{ClientIP: true, Timeout: time.Minute}}
	var eps []sm.Endpoint
	for _, a := range must.Addrs("10.244.1.1", "10.244.1.2") {
		eps = append(eps, sm.Endpoint{Addr: a, Node: "node",
			Ports: []sm.EndpointPort{{Name: "rtp", Protocol: sm.UDP}}})
	}

	s := sm.State{}.WithNode(testNode())
	s = add("range", s.WithService(calls).WithEndpoints(calls.Name, eps))
	first := *calls
	first.Name, first.SessionAffinity = svcName("first"), sm.SessionAffinity{}
	first.Ports = []sm.ServicePort{{Protocol: sm.UDP, Port: 10000, EndPort: 10099}}
	first.LoadBalancerSourceRanges = must.Prefixes("198.51.100.0/24")
	s = add("range-in-range", s.WithService(&first))
	mapped := *calls
	mapped.Ports = []sm.ServicePort{{Name: "rtp", Protocol: sm.UDP, Port: 8000, EndPort: 8099,
		TargetPort: 9000}}
	s = add("mapped-range", s.WithoutService(first.Name).WithService(&mapped))
	add("no-range", s.WithoutService(calls.Name).WithoutService(first.Name))
	return names, states
}

func TestPlansOfRanges(t *testing.T) {
	t.Parallel()
	names, states := rangeStory()
	for i, p := range planFor(t, states...) {
		golden.Plan(t, filepath.Join("testdata", "plan-"+names[i]+".txt"), p)
	}
}

// A target that keeps the port has no port, and not the flag NF_NAT_RANGE_PROTO_SPECIFIED.
func TestTheTargetThatKeepsThePort(t *testing.T) {
	t.Parallel()
	if native.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	addr := "0ab40001" + "000000000000000000000000"
	dnat := "09000100" + "444e415400000000" + "0800020000000002" + "34000300" // DNAT, revision 2
	r := rule{target: targetDNAT, to: netip.MustParseAddrPort("10.180.0.1:0")}
	exprs, _ := encodeRule(t, nft.IPv4, &r)
	require.Contains(t, hex.EncodeToString(exprs),
		dnat+"01000000"+addr+addr+"000000000000"+"0000"+"00000000")

	// 8000 becomes 9000 and 8099 becomes 9099: NF_NAT_RANGE_MAP_IPS, _PROTO_SPECIFIED and
	// _PROTO_OFFSET.
	r = rule{target: targetDNAT, to: netip.MustParseAddrPort("10.180.0.1:9000"),
		shift: portRange{8000, 8099}}
	exprs, _ = encodeRule(t, nft.IPv4, &r)
	require.Contains(t, hex.EncodeToString(exprs),
		dnat+"23000000"+addr+addr+"2328"+"238b"+"1f40"+"0000"+"00000000")
}
