package timo_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	ct "github.com/ti-mo/conntrack"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/conntrack/timo"
	"github.com/kernlb/kernlb/internal/test/cttest"
)

// IANA protocol numbers.
const (
	protoICMP   conntrack.Protocol = 1
	protoICMPv6 conntrack.Protocol = 58
)

// randomFlow returns a flow as a kernel can report it.
func randomFlow(r *rand.Rand) conntrack.Flow {
	f := cttest.RandomFlow(r)
	f.Protocol = cttest.Pick(r, f.Protocol, protoICMP, protoICMPv6, 47, 99)
	f.Timeout = time.Duration(r.Uint32()) * time.Second
	f.ID, f.Mark, f.Status = r.Uint32(), r.Uint32(), conntrack.Status(r.Uint32())
	switch f.Protocol {
	case conntrack.TCP:
		f.TCP = conntrack.TCPState(r.IntN(10))
	case conntrack.SCTP:
		f.SCTP = conntrack.SCTPState(r.IntN(9))
	case protoICMP, protoICMPv6:
		for _, t := range []*conntrack.Tuple{&f.Original, &f.Reply} {
			id := t.Src.Port()
			t.Dst = netip.AddrPortFrom(t.Dst.Addr(), id)
			t.ICMPType, t.ICMPCode = uint8(r.Uint32()), uint8(r.Uint32())
		}
	}

	f.Original.Zone = cttest.Pick(r, 0, uint16(r.Uint32()))
	f.Reply.Zone = cttest.Pick(r, 0, f.Original.Zone, uint16(r.Uint32()))
	if r.IntN(2) == 0 {
		f.OriginalCount = conntrack.Count{Packets: r.Uint64(), Bytes: r.Uint64()}
		f.ReplyCount = conntrack.Count{Packets: r.Uint64(), Bytes: r.Uint64()}
		f.Start, f.Stop = time.Unix(0, r.Int64()), time.Unix(0, r.Int64())
	}

	return f
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 60))
	for range 5000 {
		want := randomFlow(r)
		got := cttest.OK(timo.From(timo.To(want)))(t)
		require.Equal(t, want, got, "seed %d", seed)
	}
}

// A round trip loses exactly the fields that the documentation lists as lost.
func TestRoundTripOfTheirs(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 61))
	for range 1000 {
		want := timo.To(randomFlow(r))
		full := want
		full.Helper = ct.Helper{Name: "ftp"}
		full.Labels, full.LabelsMask = []byte{1}, []byte{2}
		full.TupleMaster = want.TupleOrig
		full.SecurityContext = "context"
		full.SeqAdjOrig, full.SeqAdjReply.Position = ct.SequenceAdjust{Position: 1}, 2
		full.SynProxy.ISN, full.Use = 3, 4
		if state := want.ProtoInfo.TCP; state != nil {
			full.ProtoInfo.TCP = &ct.ProtoInfoTCP{State: state.State, OriginalWindowScale: 7,
				ReplyWindowScale: 8, OriginalFlags: 9, ReplyFlags: 10}
		}

		if state := want.ProtoInfo.SCTP; state != nil {
			full.ProtoInfo.SCTP = &ct.ProtoInfoSCTP{State: state.State, VTagOriginal: 1,
				VTagReply: 2}
		}

		f := cttest.OK(timo.From(full))(t)
		require.Equal(t, want, timo.To(f), "seed %d", seed)
	}
}

func TestToLosesParts(t *testing.T) {
	t.Parallel()
	f := cttest.NewFlow(conntrack.UDP, cttest.Client, "10.96.0.10:53", "", "")
	f.TCP, f.Timeout, f.Original.ICMPType = 8, 1500*time.Millisecond, 8
	want := cttest.NewFlow(conntrack.UDP, cttest.Client, "10.96.0.10:53", "", "")
	want.Timeout = time.Second
	require.Equal(t, timo.To(want), timo.To(f))
	f.Timeout = -time.Second
	require.Zero(t, timo.To(f).Timeout)
}

func TestFromRefusesWhatIsNoFlow(t *testing.T) {
	t.Parallel()
	good := timo.To(cttest.NewFlow(conntrack.UDP, cttest.Client, "10.96.0.10:53", "", ""))
	for name, spoil := range map[string]func(*ct.Flow){
		"zero": func(f *ct.Flow) { *f = ct.Flow{} },
		"no address": func(f *ct.Flow) {
			f.TupleReply.IP.SourceAddress = netip.Addr{}
		},
		"mixed families": func(f *ct.Flow) {
			f.TupleOrig.IP.SourceAddress = netip.IPv6Loopback()
		},
		"two different directions": func(f *ct.Flow) { f.TupleReply.Proto.Protocol = 6 },
	} {
		bad := good
		spoil(&bad)
		require.ErrorIs(t, cttest.ErrOf(timo.From(bad)), timo.ErrNoFlow, name)
	}
}
