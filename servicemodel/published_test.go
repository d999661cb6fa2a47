package servicemodel_test

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestMasqueradePolicies(t *testing.T) {
	t.Parallel()
	local := sm.FromHost
	for _, tt := range []struct {
		policy                      sm.MasqueradePolicy
		cluster, external, extLocal sm.Origins
	}{
		{sm.MasqueradeDefault, sm.FromHost | sm.FromOutside, sm.FromAnywhere, local},
		{sm.MasqueradeAlways, sm.FromAnywhere, sm.FromAnywhere, sm.FromAnywhere},
		{sm.MasqueradeNotPods, sm.FromHost | sm.FromOutside, sm.FromHost | sm.FromOutside,
			sm.FromHost | sm.FromOutside},
		{sm.MasqueradeHost, local, local, local},
		{sm.MasqueradeNever, 0, 0, 0},
	} {
		parsed := ok(sm.ParseMasqueradePolicy(cmp.Or(string(tt.policy), "default")))(t)
		require.Equal(t, tt.policy, parsed)
		for _, edit := range []func(*sm.Service){func(*sm.Service) {}, externalLocal} {
			svc := webService(edit, func(s *sm.Service) {
				s.Masquerade = sm.MasqueradeAt(tt.policy)
				s.HostIPs, s.ExternalIPs = addrs("192.0.2.1"), addrs("198.51.100.1")
			})
			want := tt.external
			if svc.ExternalTrafficPolicy == sm.PolicyLocal {
				want = tt.extLocal
			}
			for f := range tableOf(t, thisNode, svc, endpoint("10.64.0.1", here)).Frontends() {
				if f.Kind == sm.ClusterIP {
					require.Equal(t, tt.cluster, f.Masquerade, "%v %v", tt.policy, f)
				} else {
					require.Equal(t, want, f.Masquerade, "%v %v", tt.policy, f)
				}
			}
		}
	}

	_, err := sm.ParseMasqueradePolicy("sometimes")
	require.EqualError(t, err, "must be default, always, not-pods, host or never")
	bad := webService(func(s *sm.Service) { s.Masquerade.HostIPs = "9" })
	require.ErrorContains(t, sm.State{}.WithService(bad).Validate(),
		"service default/web: masquerade.hostIPs: \"9\": must be always, not-pods, host or "+
			"never, or empty for the default")
}

func TestMasqueradeIPsAreChecked(t *testing.T) {
	t.Parallel()
	bad := webService(func(s *sm.Service) {
		s.MasqueradeIPs = append(addrs("192.0.2.1", "::", "0.0.0.0", "127.0.0.1"), netip.Addr{})
	})
	err := bad.Validate()
	for _, want := range []string{
		"masqueradeIPs[2]: 0.0.0.0: is of the same family as masqueradeIPs[0]; at most one is",
		"masqueradeIPs[3]: 127.0.0.1: must not be a loopback address",
		"masqueradeIPs[4]: required",
	} {
		require.ErrorContains(t, err, want)
	}

	require.NotContains(t, err.Error(), "masqueradeIPs[1]")
}

// If the node's settings say so, a client whose packets arrive by the link of an endpoint is
// masqueraded.
func TestNeighboursAreMasqueraded(t *testing.T) {
	t.Parallel()
	svc := webService(func(s *sm.Service) {
		s.Masquerade = sm.MasqueradeAt(sm.MasqueradeNever)
	})
	for _, masquerade := range []bool{false, true} {
		node := thisNode
		node.MasqueradeNeighbours = masquerade
		table := tableOf(t, node, svc, endpoint("10.64.0.1", here))
		p := sm.Packet{Src: netip.MustParseAddrPort("10.64.0.9:40000"), Protocol: sm.TCP,
			Dst: netip.AddrPortFrom(svc.ClusterIPs[0], 80)}
		masqueraded := func() bool { return table.Decide(p, nil).Candidates[0].Masquerade }
		require.False(t, masqueraded(), "no link is known")
		p.Link = prefixes("10.65.0.0/24", "10.64.0.0/24")
		require.Equal(t, masquerade, masqueraded())
		p.Link = p.Link[:1]
		require.False(t, masqueraded())
	}
}

// Ports published at loopback addresses answer to the node itself, if the node allows this. These
// connections are masqueraded whatever the policy says.
func TestPublishedAtLoopback(t *testing.T) {
	t.Parallel()
	svc := webService(externalLocal, func(s *sm.Service) {
		s.HostIPs = addrs("127.0.0.1", "192.0.2.1")
		s.Masquerade = sm.MasqueradeAt(sm.MasqueradeNever)
	})
	node := thisNode
	decide := func(src, dst string, fromHere bool) string {
		table := tableOf(t, node, svc, endpoint("10.64.0.1", here))
		return table.Decide(sm.Packet{Src: netip.MustParseAddrPort(src), Protocol: sm.TCP,
			Dst: netip.MustParseAddrPort(dst), FromThisNode: fromHere}, node.Addresses).String()
	}

	const nobody = "untouched: no service answers there"
	require.Equal(t, nobody, decide("127.0.0.1:40000", "127.0.0.1:80", true))
	require.Equal(t, "balanced over 10.64.0.1:8080: host-ip of default/web:http, from outside",
		decide("198.51.100.9:40000", "192.0.2.1:80", false))

	node.LocalhostNodePorts = true
	for port, kind := range map[string]string{"80": "host-ip", "30080": "node-port"} {
		require.Equal(t,
			"balanced over 10.64.0.1:8080 masqueraded: "+kind+" of default/web:http, from host",
			decide("127.0.0.1:40000", "127.0.0.1:"+port, true))
		require.Equal(t, nobody, decide("198.51.100.9:40000", "127.0.0.1:"+port, false))
		require.Equal(t, nobody, decide("[::1]:40000", "[::1]:"+port, true))
	}

	require.ErrorContains(t, sm.State{}.WithService(webService(func(s *sm.Service) {
		s.HostIPs = addrs("::1")
	})).Validate(), "hostIPs[0]: ::1: must not be ::1: the kernel cannot route from there")
}

func TestAQuiescedEndpointTakesNothingNew(t *testing.T) {
	t.Parallel()
	table := tableOf(t, thisNode, webService(),
		endpoint("10.64.0.1", here, zones("z1")), endpoint("10.64.0.2", quiesced))
	require.Equal(t, []string{"10.64.0.1"}, endpointsOf(table, sm.IPv4, false))

	only := tableOf(t, thisNode, webService(externalLocal, func(s *sm.Service) {
		s.HealthCheckNodePort = 32000
	}), endpoint("10.64.0.2", quiesced, here), endpoint("10.64.0.3", quiesced))
	require.Empty(t, slices.Collect(only.Pools()), "it is no fallback either")
	require.Equal(t, sm.Reject, frontendAt(t, only, "10.96.0.1:80", sm.TCP).Internal)
	for h := range only.HealthChecks() {
		require.Zero(t, h.IPv4)
	}
}

func TestWeightsHaveNoCommonDivisor(t *testing.T) {
	t.Parallel()
	weight := func(w uint16) func(*sm.Endpoint) {
		return func(e *sm.Endpoint) { e.Weight = w }
	}
	for _, tt := range []struct{ given, want [3]uint16 }{
		{[3]uint16{10, 20, 40}, [3]uint16{1, 2, 4}},
		{[3]uint16{0, 20, 40}, [3]uint16{1, 20, 40}},
		{[3]uint16{6, 10, 15}, [3]uint16{6, 10, 15}},
		{[3]uint16{65535, 65535, 65535}, [3]uint16{1, 1, 1}},
	} {
		table := tableOf(t, thisNode, webService(), endpoint("10.64.0.1", weight(tt.given[0])),
			endpoint("10.64.0.2", weight(tt.given[1])), endpoint("10.64.0.3", weight(tt.given[2])))
		for i, s := range table.Pool(sm.PoolID{Service: webHTTP, Family: sm.IPv4}).Slots {
			require.Equal(t, tt.want[i], s.Weight, "%v", tt.given)
		}
	}
}
