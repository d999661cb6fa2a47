package kubeproxy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	sm "github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

// A firewall drops forwarded packets by its policy. kube-proxy's modes iptables and ipvs accept
// masqueraded packets there, and so does the iptables backend. An accept in one table of nf_tables
// does not overrule a drop in another, so with the nftables backend the firewall itself must accept
// these packets: the rules of docs/from-kube-proxy.md do. No backend and no mode lets unmasqueraded
// packets pass.
func TestAFirewallThatDropsForwardedPackets(t *testing.T) {
	t.Parallel()
	masqueraded, unmasqueraded := uint16(32745), uint16(32746)
	for name, open := range takers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := netnstest.Start(t, netnstest.Options{})
			require.NoError(t, c.Pods[0].Serve(sm.TCP, 8080))
			nstest.Run(t, c.Node.NS, "iptables-nft -P FORWARD DROP")
			set := manifest.NewSet(&kube.Config{Node: sm.Node{Name: "node-1"}})
			ok(set.PutFile("testdata/forward-drop.yaml"))(t)
			b := ok(open(c.Node.NS.NetNS()))(t)
			defer b.Close()
			ok(dataplane.New(b, nil).Apply(t.Context(), set.Tracker().State()))(t)

			answers := func(port uint16) bool {
				o := netnstest.Probe{From: c.Outside[0], Proto: sm.TCP, Timeout: time.Second,
					To: netip.AddrPortFrom(c.Node.IPv4, port)}.Send(t.Context())
				return o.Kind == netnstest.Answered
			}

			require.Equal(t, name != "nftables", answers(masqueraded))
			require.False(t, answers(unmasqueraded))
			for _, rule := range []string{"-m mark --mark 0x1000/0x1000",
				"-m conntrack --ctstate RELATED,ESTABLISHED"} {
				nstest.Run(t, c.Node.NS, "iptables-nft -A FORWARD "+rule+" -j ACCEPT")
			}

			require.True(t, answers(masqueraded))
			require.False(t, answers(unmasqueraded))
		})
	}
}
