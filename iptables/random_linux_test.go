package iptables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/netnstest"
	"github.com/kernlb/kernlb/internal/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func addrs(l ...string) []netip.Addr {
	var a []netip.Addr
	for _, s := range l {
		a = append(a, netip.MustParseAddr(s))
	}
	return a
}

func prefixes(l ...string) []netip.Prefix {
	var p []netip.Prefix
	for _, s := range l {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

func randomConfig() randstate.Config {
	c := randstate.Config{Services: 40, EndpointPorts: []uint16{8080, 8081, 9090}, Weights: true}
	for i := range 8 {
		c.Places = append(c.Places, randstate.Place{
			IPv4: netip.AddrFrom4([4]byte{10, 244, byte(i % 3), byte(i + 1)}), IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", i+1)),
			Node: []string{"node-0", "node-1", ""}[i%3], Zone: "z" + fmt.Sprint(i%2),
		})
	}
	c.Nodes = []sm.Node{
		{Name: "node-0", Zone: "z0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10")}},
		{
			Name: "node-1", Zone: "z1", ServiceCIDRs: prefixes("10.96.0.0/16"),
			LocalPods: sm.PodDetector{CIDRs: prefixes("10.244.0.0/16", "fd00:10:244::/56")},
		},
		{
			Name: "node-0", MasqueradeAll: true, MasqueradeMark: 1, LocalhostNodePorts: true,
			NodePortAddresses: sm.NodePortAddresses{CIDRs: prefixes("192.0.2.0/24", "127.0.0.0/8")},
		},
		{Name: "node-0", LocalPods: sm.PodDetector{Bridge: "cni0"}},
	}
	c.Node = c.Nodes[0]
	return c
}

// What a sequence of changes leaves in the kernel is what a new process reads there, exactly, and is what it would have written itself.
func TestKernelHoldsWhatWasApplied(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			b, ns, _ := opened(t, Config{})
			g := randstate.New(randomConfig(), rand.New(rand.NewPCG(seed, 1)))
			e := dataplane.New(b, nil)
			s := g.State()
			for step := range 60 {
				r, err := e.Apply(t.Context(), s)
				require.NoError(t, err, "step %d", step)
				require.Empty(t, r.Drift)
				require.Equal(t, step == 0, r.Observed, "only the start reads the kernel")

				again, err := e.Apply(t.Context(), s)
				require.NoError(t, err)
				require.True(t, again.Changes.Empty(), "the same state: %s", again.Changes)
				require.Zero(t, again.Messages)
				if step%10 == 0 {
					requireAdopts(t, ns, s, r.Changes.New)
				}
				s = g.Change(s)
			}
		})
	}
}

// requireAdopts reads the kernel with a new backend and requires that it holds the table, and that applying the state changes nothing.
func requireAdopts(t *testing.T, ns *netnstest.NS, s sm.State, want *sm.Table) {
	t.Helper()
	b, err := New(&Config{NetNS: ns.Fd()})
	require.NoError(t, err)
	defer b.Close()
	e := dataplane.New(b, nil)
	o, err := e.Observe(t.Context())
	require.NoError(t, err)
	require.Empty(t, o.Drift)
	d := sm.Diff(o.Table, want)
	require.Empty(t, d.Frontends, "observed, and applied: %s", d)
	require.Empty(t, d.Pools, "observed, and applied: %s", d)
	require.Nil(t, d.Rules, "observed, and applied: %s", d)
	require.Empty(t, d.ClusterIPs, "observed, and applied: %s", d)
	require.Empty(t, d.Hairpins, "observed, and applied: %s", d)
	r, err := e.Apply(t.Context(), s)
	require.NoError(t, err)
	require.Zero(t, r.Messages)
}
