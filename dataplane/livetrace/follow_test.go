package livetrace

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// headers are those of a TCP segment.
func headers(src, dst string, flags byte) (network, transport []byte) {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	network = make([]byte, 12, 20)
	network[0], network[9] = 0x45, 6
	network = append(append(network, s.Addr().AsSlice()...), d.Addr().AsSlice()...)
	transport = binary.BigEndian.AppendUint16(nil, s.Port())
	transport = append(binary.BigEndian.AppendUint16(transport, d.Port()), make([]byte, 16)...)
	transport[13] = flags
	return network, transport
}

const syn, synAck = 0x02, 0x12

// in is an event of a chain that the packet comes to.
func in(id uint32, table, chain, src, dst string, flags byte) *nft.TraceInfo {
	e := &nft.TraceInfo{ID: id, Type: nft.TracePolicy, Policy: nft.VerdictAccept, Table: table,
		Chain: chain}
	e.Network, e.Transport = headers(src, dst, flags)
	return e
}

// matched makes it the event of a rule.
func matched(e *nft.TraceInfo, handle uint64, verdict int32) *nft.TraceInfo {
	e.Type, e.Handle, e.Verdict = nft.TraceRule, handle, verdict
	return e
}

const (
	own    = "kernlb-trace-1"
	client = "10.0.0.1:4000"
	vip    = "10.96.0.1:80"
	server = "10.0.0.2:8080"
)

func follow(events ...*nft.TraceInfo) *follower {
	f := &follower{table: own}
	for _, e := range events {
		f.event(2, e)
	}
	return f
}

// If something such as IPVS removes a packet from a hook and sends it on, the end of the hook is
// missing.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	out := in(1, own, "postrouting-last", client, server, syn)
	out.Out = 7
	events := []*nft.TraceInfo{
		matched(in(1, own, "prerouting-first", client, vip, syn), 1, -1),
		in(2, own, "prerouting-first", client, vip, syn), // another packet
		in(1, own, "prerouting-last", client, vip, syn),
		in(1, own, "input-first", client, vip, syn),
	}
	f := follow(events...)
	require.False(t, f.done())
	require.Equal(t, Lost, f.request.Fate)
	require.Contains(t, f.request.String(), "lost in input, by something that is no rule")
	f = follow(append(events, in(1, own, "output-first", client, server, syn),
		in(1, own, "output-last", client, server, syn),
		in(1, own, "postrouting-first", client, server, syn), out)...)
	require.Equal(t, Sent, f.request.Fate)
	require.Equal(t, []Step{{Hook: "input", Packet: &Packet{Protocol: 6, Kind: "syn",
		Src: netip.MustParseAddrPort(client), Dst: netip.MustParseAddrPort(server)}},
		{Hook: "input", Taken: true}}, f.request.Steps)
	require.Contains(t, f.request.String(), "answer       none was seen")

	// Only what goes back the same way is the answer.
	f.event(2, matched(in(3, own, "prerouting-answers", server, "10.0.0.1:4001", synAck), 1, -1))
	require.Nil(t, f.answer)
	f.event(2, matched(in(3, own, "prerouting-answers", server, client, synAck), 1, -1))
	f.event(2, matched(&nft.TraceInfo{ID: 3, Table: "fw", Chain: "c"}, 9, nft.VerdictDrop))
	require.True(t, f.done())
	require.Equal(t, Dropped, f.answer.Fate)
	require.Equal(t, "ip fw c, handle 9", f.answer.By.String())
}

// A packet comes back from the loopback interface with another number.
func TestLooped(t *testing.T) {
	t.Parallel()
	out := in(1, own, "postrouting-last", client, server, syn)
	out.Out = loopback
	f := follow(matched(in(1, own, "output-first", client, vip, syn), 1, -1),
		in(1, own, "output-last", client, server, syn), out,
		&nft.TraceInfo{ID: 1, Table: own, Chain: "postrouting-last", Type: nft.TracePolicy},
		in(5, own, "prerouting-first", client, vip, syn), // another one
		in(6, own, "prerouting-first", client, server, syn),
		in(6, own, "prerouting-last", client, server, syn),
		in(6, own, "input-first", client, server, syn),
		in(6, own, "input-last", client, server, syn))
	require.Equal(t, Delivered, f.request.Fate)
	require.Equal(t, "delivered to "+server+" on this node", f.request.outcome())
}

// Packets of a connection that was followed before still generate events: its answers, and its
// packets after the translation. None of these packets is followed again.
func TestOnlyTheRuleThatTracesBegins(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]*nft.TraceInfo{
		"an answer":                in(1, own, "forward-first", server, client, synAck),
		"an answer that is looped": in(1, own, "prerouting-first", server, client, synAck),
		"behind the translation":   in(1, own, "forward-first", client, server, syn),
		"the end of a chain":       in(1, own, "postrouting-first", server, client, 0x10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := follow(matched(e, 0, -1))
			require.Nil(t, f.request)
			f.event(2, matched(in(2, own, "prerouting-first", client, vip, syn), 1, -1))
			require.Equal(t, netip.MustParseAddrPort(client), f.request.Packet.Src)
		})
	}
}

// Decoding and following never panics, whatever the kernel sends.
func FuzzEvents(f *testing.F) {
	var b rawnl.Batch
	b.Message(rawnl.SubsysNFTables, nft.MsgTrace, 0, 2, 0, rawnl.Object{})
	network, transport := headers(client, vip, syn)
	b.Text(1, own)
	b.Text(2, "prerouting-first")
	b.U64(3, 7)
	b.U32(4, uint32(nft.TraceRule))
	v := b.Nest(5)
	b.U32(1, nft.VerdictDrop)
	b.End(v)
	b.U32(6, 1)
	b.Attr(8, network)
	b.Attr(9, transport)
	f.Add(b.Bytes())
	f.Fuzz(func(_ *testing.T, data []byte) {
		w := follower{table: own}
		for range 2 {
			_ = rawnl.Messages(data, func(m rawnl.Message) error {
				e, err := nft.DecodeTrace(m.Attrs)
				if err == nil {
					w.event(m.Family, &e)
				}
				return err
			})
		}

		if w.request != nil {
			_ = w.request.String()
		}
	})
}
