package nftables

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// nft add element ip t m { 10.96.0.1 . tcp . 80 . 3 comment "x" : 10.244.1.1 . 8080 }, on a little-endian machine.
const elemBytes = "34000180" +
	"18000180" + "14000100" + "0a600001" + "06000000" + "00500000" + "03000000" + // the key
	"10000280" + "0c000100" + "0af40101" + "1f900000" + // the data
	"08000600" + "00027800" // the comment

func TestElementBytes(t *testing.T) {
	t.Parallel()
	if native32(1)[0] != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
	k := servicemodel.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: servicemodel.TCP, Port: 80}
	var l elemList
	l.add(elem{key: appendSlot(appendFrontend(nil, k), 3), data: appendEndpoint(nil, netip.MustParseAddrPort("10.244.1.1:8080")), ud: appendComment(nil, "x")})
	require.Equal(t, elemBytes, hex.EncodeToString(l.buf))
}

func TestElementsRoundTrip(t *testing.T) {
	t.Parallel()
	var l elemList
	in := []elem{
		{key: []byte{1, 2, 3, 4}},
		{key: []byte{1, 2, 3}, data: []byte{9}},
		{key: []byte{1, 2, 3, 4, 5, 6, 7, 8}, keyEnd: []byte{1, 2, 3, 4, 5, 6, 7, 9}, ud: appendComment(nil, strings.Repeat("long ", 40))},
		{key: []byte{7}, data: []byte{1, 2, 3, 4}, timeout: time.Hour},
	}
	for _, e := range in {
		l.add(e)
	}
	var out []elem
	require.NoError(t, decodeElems(l.buf, func(e elem) error {
		out = append(out, e)
		return nil
	}))
	require.Len(t, out, len(in))
	for i := range in {
		in[i].timeout = 0 // read back as what is left of it
		require.Equal(t, in[i], out[i])
	}
	require.Equal(t, strings.Repeat("long ", 40), commentOf(out[2].ud))
}

func TestElementListsAreCutIntoMessages(t *testing.T) {
	t.Parallel()
	var l elemList
	for i := range 5000 {
		l.add(elem{key: native32(uint32(i))})
	}
	n, size := 0, 0
	l.chunks(func(b []byte) {
		require.LessOrEqual(t, len(b), messageRoom+64)
		require.NoError(t, decodeElems(b, func(elem) error { n++; return nil }))
		size += len(b)
	})
	require.Equal(t, 5000, n)
	require.Equal(t, len(l.buf), size)
}

func TestCommentsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, fe := range []*servicemodel.Frontend{
		{Kind: servicemodel.ClusterIP, Internal: servicemodel.BalanceCluster, External: servicemodel.BalanceCluster},
		{Kind: servicemodel.NodePort, Internal: servicemodel.BalanceCluster, External: servicemodel.Drop},
		{Kind: servicemodel.LoadBalancer, Internal: servicemodel.Reject, External: servicemodel.Reject},
	} {
		for _, port := range []string{"", "http"} {
			fe.Key = servicemodel.FrontendKey{Addr: netip.MustParseAddr("10.0.0.1"), Protocol: servicemodel.UDP, Port: 53}
			fe.Service = servicemodel.PortName{Name: servicemodel.Name{Namespace: "default", Name: strings.Repeat("n", 63)}, Port: port, Protocol: servicemodel.UDP}
			got, err := parseComment(comment(fe), fe.Key)
			require.NoError(t, err)
			require.Equal(t, fe, got)
		}
	}
	for _, bad := range []string{"", "a b c", "a/b cluster-ip nowhere", "a/b cluster-ip cluster local drop", "a/b elsewhere drop"} {
		_, err := parseComment(bad, servicemodel.FrontendKey{})
		require.Error(t, err, bad)
	}
}

func TestSettingsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, tc := range programCases {
		got, err := parseSettings(settings(tc.rules))
		require.NoError(t, err)
		require.True(t, tc.rules.Equal(got), "%+v", got)
	}
	_, err := parseSettings([]string{"pod-cidr nonsense"})
	require.ErrorContains(t, err, "pod-cidr nonsense")
}

// Whatever the kernel says, decoding it is an error or not, and never a panic.
func FuzzDecode(f *testing.F) {
	seed, _ := hex.DecodeString(elemBytes)
	f.Add(seed)
	var b nfnl.Batch
	programPlan(&programCases[1].shape, programCases[1].rules).encode(&b)
	f.Add(b.Bytes()[:2000])
	f.Fuzz(func(t *testing.T, data []byte) {
		var l []elem
		_ = decodeElems(data, func(e elem) error {
			l = append(l, e)
			return nil
		})
		_, _, _, _ = decodeSet(data)
		_, _, _ = decodeChain(data)
		_, _, _, _ = decodeRule(data)
		_, _ = decodeCounters(data)
		_ = commentOf(data)
		for _, fam := range families {
			raw := &rawTable{sets: map[string]rawSet{}, chains: map[string]chain{}, hashes: map[string][]uint64{}, elems: map[string][]elem{}}
			rules := programCases[0].rules
			s := shape{sizes: [2][2][]int{{{1}, nil}, {{1}, nil}}}
			for _, st := range fam.sets(&s) {
				raw.sets[st.name] = rawOf(st)
				raw.elems[st.name] = l
			}
			for _, c := range newProgram(fam, rules, &s).chains {
				raw.chains[c.name] = c.chain
			}
			raw.elems[setSettings] = []elem{{key: native32(1), ud: appendComment(nil, "masquerade-mark 0x4000")}}
			if o, err := read(fam, raw); err == nil {
				for name, list := range o.drift {
					require.NotEmpty(t, name)
					require.NoError(t, decodeElems(list.buf, func(elem) error { return nil }))
				}
			}
		}
	})
}
