package ipvsnl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
)

// genHeader is the length of struct genlmsghdr. The bodies of ipvsfake begin with one.
const genHeader = 4

func TestADestinationComesBackAsItWas(t *testing.T) {
	t.Parallel()
	want := ObservedDestination{Destination: Dest("10.244.1.1:8080"), ActiveConns: 1,
		InactiveConns: 2, PersistentConns: 3, Stats: SomeStats}
	want.Forward, want.Tunnel = ForwardTunnel, Tunnel{Type: 1, Port: 6080, Flags: 2}
	got := ok(ParseDestinationReply(ipvsfake.DestinationBody(want)[genHeader:], FamilyIPv4))(t)
	require.Equal(t, want, got)
}

func FuzzParseService(f *testing.F) {
	for _, k := range []ServiceKey{Web, DNS6, Marks} {
		f.Add(ServiceAttr(Wanted(k)))
		body := ipvsfake.ServiceBody(ObservedService{Service: Wanted(k)})
		f.Add(body[genHeader:])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseServiceReply(data)
		if err != nil {
			require.ErrorIs(t, err, rawnl.ErrMalformed)
			return
		}
		back := ok(ParseServiceReply(ipvsfake.ServiceBody(s)[genHeader:]))(t)
		require.Equal(t, s.Service, back.Service)
	})
}

func FuzzParseDestination(f *testing.F) {
	f.Add(DestinationAttr(Dest("10.244.1.1:8080")), true)
	f.Add(DestinationAttr(Dest("[2001:db8::2]:80")), false)
	body := ipvsfake.DestinationBody(ObservedDestination{Destination: Dest("10.244.1.1:8080")})
	f.Add(body[genHeader:], true)
	f.Fuzz(func(t *testing.T, data []byte, ipv4 bool) {
		family := FamilyIPv6
		if ipv4 {
			family = FamilyIPv4
		}
		d, err := ParseDestinationReply(data, family)
		if err != nil {
			require.ErrorIs(t, err, rawnl.ErrMalformed)
			return
		}
		back := ok(ParseDestinationReply(ipvsfake.DestinationBody(d)[genHeader:], family))(t)
		require.Equal(t, d.Destination, back.Destination)
		require.Equal(t, d.ActiveConns, back.ActiveConns)
	})
}

// The description of a request for errors can read any bytes.
func FuzzDescribe(f *testing.F) {
	var b Batch
	b.NewDestination(Web, Dest("10.244.1.1:8080"))
	f.Add(b.Wire().Bytes())
	f.Fuzz(func(_ *testing.T, request []byte) {
		CommandNewDestination.DescribePart(request, 0)
	})
}
