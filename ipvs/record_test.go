package ipvs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestCommentsReadBack(t *testing.T) {
	t.Parallel()
	k := servicemodel.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"),
		Protocol: servicemodel.TCP, Port: 80}
	name := servicemodel.PortName{Name: servicemodel.Name{Namespace: "default", Name: "web"},
		Port: "http", Protocol: servicemodel.TCP}
	for _, r := range []*record{
		{fe: &servicemodel.Frontend{Key: k, Service: name}, nat: true},
		{fe: &servicemodel.Frontend{Key: k, Service: name, Kind: servicemodel.LoadBalancer,
			Internal: servicemodel.BalanceCluster,
			External: servicemodel.BalanceLocal, Masquerade: servicemodel.FromHost,
			Affinity: time.Minute}, mark: allMarks + 7},
	} {
		got := ok(parseRecord(r.comment(), k))(t)
		require.True(t, got.equal(r), r.comment())
	}
}

func TestCommentsThatAreNotOursAreRefused(t *testing.T) {
	t.Parallel()
	k := servicemodel.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"),
		Protocol: servicemodel.TCP, Port: 80}
	for _, s := range []string{
		"", "default/web cluster IP mark=x", "default/web cluster IP mark=",
		"default/web cluster IP mark=99999999999", "default/web cluster IP routed=1",
	} {
		_, err := parseRecord(s, k)
		require.Error(t, err, s)
	}
	r := ok(parseRecord("default/web:http loadbalancer IP internal=cluster external=local "+
		"masquerade=host affinity=60 mark=7 routed", k))(t)
	require.Equal(t, allMarks+7, r.mark)
	require.Equal(t, time.Minute, r.fe.Affinity)
	require.Equal(t, servicemodel.FromHost, r.fe.Masquerade)
	require.False(t, r.nat)
}

func FuzzParseRecord(f *testing.F) {
	k := servicemodel.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"),
		Protocol: servicemodel.TCP, Port: 80}
	f.Add("default/web:http loadbalancer IP internal=cluster external=local mark=7 routed")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseRecord(s, k)
		if err != nil {
			return
		}
		again := ok(parseRecord(r.comment(), k))(t)
		require.True(t, again.equal(r), r.comment())
	})
}

func FuzzElements(f *testing.F) {
	var l nft.ElemList
	l.Add(nft.Elem{Key: []byte{10, 96, 0, 10}, UserData: nft.AppendComment(nil, "x")})
	f.Add(l.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		if err := nft.DecodeElems(b, func(e nft.Elem) error {
			n++
			_ = nft.CommentOf(e.UserData)
			return nil
		}); err == nil {
			require.LessOrEqual(t, n*4, len(b))
		}
	})
}
