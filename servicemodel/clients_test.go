package servicemodel_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestClientRules(t *testing.T) {
	t.Parallel()
	allow := func(l ...string) sm.ClientRule { return sm.ClientRule{Allow: prefixes(l...)} }
	deny := func(l ...string) sm.ClientRule { return sm.ClientRule{Deny: prefixes(l...)} }
	only := func(a string, r sm.ClientRule) sm.ClientRule {
		r.Addrs = addrs(a)
		return r
	}
	const cluster, external = "10.96.0.10", "198.51.100.1"
	tests := []struct {
		name   string
		rules  []sm.ClientRule
		v4, v6 []string // at the cluster IPs
		other  []string // at the external IP
	}{
		{"none", nil, nil, nil, nil},
		{"allowed in one family", []sm.ClientRule{allow("10.0.0.0/8")},
			[]string{"10.0.0.0/8"}, []string{"::/128"}, []string{"10.0.0.0/8"}},
		{"allowed to everybody of a family", []sm.ClientRule{allow("10.0.0.0/8", "0.0.0.0/0")},
			nil, []string{"::/128"}, nil},
		{"at one address", []sm.ClientRule{only(external, allow("10.0.0.0/8"))},
			nil, nil, []string{"10.0.0.0/8"}},
		{"each rule holds", []sm.ClientRule{allow("10.0.0.0/8", "fd00::/8"),
			only(cluster, allow("10.0.0.0/9", "11.0.0.0/8"))},
			[]string{"10.0.0.0/9"}, []string{"fd00::/8"}, []string{"10.0.0.0/8"}},
		{"denied", []sm.ClientRule{deny("128.0.0.0/2"), only(cluster, deny("0.0.0.0/2"))},
			[]string{"64.0.0.0/2", "192.0.0.0/2", "10.96.0.10/32"}, nil,
			[]string{"0.0.0.0/1", "192.0.0.0/2"}},
		{"denied in what is allowed", []sm.ClientRule{{Allow: prefixes("10.0.0.0/8"),
			Deny: prefixes("10.64.0.0/10", "10.64.0.1/32")}},
			[]string{"10.0.0.0/10", "10.128.0.0/9"}, []string{"::/128"},
			[]string{"10.0.0.0/10", "10.128.0.0/9"}},
		{"nobody", []sm.ClientRule{{Allow: prefixes("10.0.0.0/8"), Deny: prefixes("0.0.0.0/0")}},
			[]string{"0.0.0.0/32"}, []string{"::/128"}, []string{"0.0.0.0/32"}},
		{"the node itself, at an address that it holds", []sm.ClientRule{allow("192.0.2.0/24")},
			[]string{"10.96.0.10/32", "192.0.2.0/24"}, []string{"::/128"},
			[]string{"192.0.2.0/24", "198.51.100.1/32"}},
	}
	for _, tt := range tests {
		table := tableOf(t, thisNode, webService(everywhere, func(s *sm.Service) {
			s.ClusterIPs, s.Clients = addrs(cluster, "fd96::1"), tt.rules
		}))
		at := func(to string) []netip.Prefix { return frontendAt(t, table, to, sm.TCP).Sources }
		require.ElementsMatch(t, prefixes(tt.v4...), at(cluster+":80"), tt.name)
		require.ElementsMatch(t, prefixes(tt.v6...), at("[fd96::1]:80"), tt.name)
		require.ElementsMatch(t, prefixes(tt.other...), at(external+":80"), tt.name)
		for f := range table.Frontends() {
			require.False(t, f.Kind == sm.NodePort && f.Sources != nil, tt.name)
		}
	}
}

func TestClientRulesAreChecked(t *testing.T) {
	t.Parallel()
	many := make([]netip.Prefix, 65)
	for i := range many {
		many[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i)}), 24)
	}
	err := webService(func(s *sm.Service) {
		s.Clients = []sm.ClientRule{{}, {Addrs: make([]netip.Addr, 1),
			Allow: prefixes("::ffff:0:0/96"), Deny: make([]netip.Prefix, 1)}, {Deny: many}}
	}).Validate()
	for _, want := range []string{
		"clients[0].allow: required, unless deny is given", "clients[1].addrs[0]: required",
		"clients[1].allow[0]: ::ffff:0.0.0.0/96: is a range of IPv4-mapped IPv6 addresses",
		"clients[1].deny[0]: not a valid range", "clients[2].deny: 66: too many ranges",
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestClientRulesWithoutEffectAreWarnedOf(t *testing.T) {
	t.Parallel()
	svc := webService(everywhere, func(s *sm.Service) {
		s.Clients = []sm.ClientRule{{Addrs: addrs("192.0.2.77"), Deny: prefixes("10.0.0.0/8")},
			{Deny: prefixes("10.0.0.0/8")}}
	})
	table := mustResolve(t, nil, stateOf(thisNode, svc, endpoint("10.64.0.1", here)))
	var got []string
	for w := range table.Warnings().All() {
		got = append(got, w.Field+": "+w.Reason)
	}
	require.Equal(t, []string{"clients[0].addrs[0]: the node does not answer there",
		"clients[1]: does not restrict the node ports"}, got)
}
