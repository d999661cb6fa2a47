package nftables_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// If a packet finds no endpoint in the chains of type nat because of a commit, it is neither
// refused nor passed on without translation. Its client sends again. The test empties the maps of
// endpoints instead of committing.
func TestAPacketWithoutEndpointIsSentAgain(t *testing.T) {
	t.Parallel()
	c := newNeighbourly(t)
	l := newLocalhost(t, c, "")
	s := l.state(c.Pods[1])
	for svc := range s.Services() {
		changed := *svc
		changed.HostIPs, changed.Masquerade = nil, servicemodel.Masquerade{}
		changed.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
		changed.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.10")}
		s = s.WithService(&changed)
	}

	l.apply(s)
	nstest.Run(t, c.Node.NS, "nft flush map ip kernlb service-endpoints")
	nstest.Run(t, c.Node.NS, "nft flush map ip kernlb nodeport-endpoints")
	targets := map[string]*netnstest.Host{"10.96.0.10:80": c.Pods[0],
		"203.0.113.10:80": c.Outside[0], c.Node.IPv4.String() + ":30080": c.Outside[1]}
	outcomes := make(chan netnstest.Outcome)
	for to, from := range targets {
		go func() {
			outcomes <- netnstest.Probe{From: from, Proto: servicemodel.TCP,
				To: netip.MustParseAddrPort(to), Timeout: time.Minute}.Send(t.Context())
		}()
	}

	time.Sleep(300 * time.Millisecond)
	require.NotEmpty(t, l.apply(s).Drift)
	for range targets {
		o := <-outcomes
		require.Equal(t, netnstest.Answered, o.Kind, o)
	}
}
