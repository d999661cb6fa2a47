package flows_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestCountersOfFlows(t *testing.T) {
	t.Parallel()
	vip := netip.MustParseAddrPort("10.96.0.1:80")
	pod, client := netip.MustParseAddrPort("10.244.0.1:8080"), netip.MustParseAddrPort("10.0.0.1:9")
	flow := func(answers netip.AddrPort, in, out uint64) conntrack.Flow {
		return conntrack.Flow{Protocol: conntrack.TCP,
			Original:      conntrack.Tuple{Src: client, Dst: vip},
			Reply:         conntrack.Tuple{Src: answers, Dst: client},
			OriginalCount: conntrack.Count{Packets: in, Bytes: 40 * in},
			ReplyCount:    conntrack.Count{Packets: out, Bytes: 50 * out}}
	}

	read := func(l ...conntrack.Flow) *counters.Reading {
		return ok(flows.Counters{Table: &fakeTable{flows: l}}.Read(t.Context()))(t)
	}
	pair := counters.Pair{Protocol: servicemodel.TCP, Dst: vip, Endpoint: pod}
	r := read(flow(pod, 3, 2), flow(pod, 1, 0), flow(vip, 9, 9))
	require.Equal(t, map[counters.Pair]counters.Values{pair: {Connections: 2, PacketsIn: 4,
		BytesIn: 160, PacketsOut: 2, BytesOut: 100}}, r.Pairs, "what is not translated is left out")
	require.False(t, r.OnlyConnections)
	r = read(flow(pod, 0, 0))
	require.Equal(t, counters.Values{Connections: 1}, r.Pairs[pair])
	require.True(t, r.OnlyConnections)

	broken := errors.New("broken")
	table := flows.Counters{Table: &fakeTable{err: broken}}
	require.ErrorIs(t, errOf(table.Read(t.Context())), broken)
}
