package ipvs

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/comment"
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
			Affinity: time.Minute}, mark: splitMarks + 7},
	} {
		got, err := parseRecord(r.comment(), k)
		require.NoError(t, err)
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
	r, err := parseRecord("default/web:http loadbalancer IP internal=cluster external=local "+
		"masquerade=host affinity=60 mark=7 routed", k)
	require.NoError(t, err)
	require.Equal(t, splitMarks+7, r.mark)
	require.Equal(t, time.Minute, r.fe.Affinity)
	require.Equal(t, servicemodel.FromHost, r.fe.Masquerade)
	require.False(t, r.nat)
}

// A record of the longest name that Kubernetes allows fits into user data.
func TestCommentsOfTheLongestNames(t *testing.T) {
	t.Parallel()
	long := func(c string) string { return strings.Repeat(c, 63) }
	r := &record{fe: &servicemodel.Frontend{Service: servicemodel.PortName{
		Name: servicemodel.Name{Namespace: long("n"), Name: long("s")}, Port: long("p")},
		Kind: servicemodel.LoadBalancer, Internal: servicemodel.BalanceCluster,
		External: servicemodel.BalanceLocal, Affinity: 24 * time.Hour}, mark: 1<<32 - 1}
	require.LessOrEqual(t, len(r.comment()), comment.MaxLen)
	got, err := parseRecord(r.comment(), servicemodel.FrontendKey{})
	require.NoError(t, err)
	require.True(t, got.equal(r), r.comment())
}

func TestRangesArePrefixes(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"10.0.0.0/8", "192.0.2.1/32", "0.0.0.0/0", "2001:db8::/33"} {
		p := netip.MustParsePrefix(s)
		got, ok := nft.RangePrefix(p.Addr(), nft.LastAddr(p))
		require.True(t, ok)
		require.Equal(t, p, got)
	}
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
		again, err := parseRecord(r.comment(), k)
		require.NoError(t, err)
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

// What is rejected or dropped, and for whom, is said by the sets that a frontend is in.
func TestVerdictsAreSets(t *testing.T) {
	t.Parallel()
	const (
		balance = servicemodel.BalanceCluster
		reject  = servicemodel.Reject
		drop    = servicemodel.Drop
	)
	for _, tc := range []struct {
		internal, external servicemodel.Verdict
		sets               []string
	}{
		{balance, balance, nil},
		{reject, reject, []string{setReject}},
		{drop, drop, []string{setDrop}},
		{balance, servicemodel.BalanceLocal, []string{setSplit}},
		{balance, reject, []string{setSplit, setExtReject}},
		{balance, drop, []string{setSplit, setExtDrop}},
		{reject, drop, []string{setReject, setSplit, setExtDrop}},
		{drop, reject, []string{setDrop, setSplit, setExtReject}},
		{drop, balance, []string{setDrop, setSplit}},
	} {
		r := &record{fe: &servicemodel.Frontend{Internal: tc.internal, External: tc.external}}
		require.Equal(t, tc.sets, r.verdictSets(), "%v, %v", tc.internal, tc.external)
	}
}
