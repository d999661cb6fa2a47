package ipvsnl

import (
	_ "embed"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Keys that many tests use.
var (
	web   = AddressService(TCP, addrPort("10.96.0.1:80"))
	dns6  = AddressService(UDP, addrPort("[2001:db8::1]:53"))
	marks = MarkService(FamilyIPv4, 7)
)

// wanted returns a service with few settings.
func wanted(k ServiceKey) Service { return Service{ServiceKey: k, Scheduler: "rr"} }

// dest returns a destination with few settings.
func dest(s string) Destination { return Destination{DestinationKey: destKey(s), Weight: 1} }

// addrPort parses an address and a port.
func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// destKey parses a key.
func destKey(s string) DestinationKey {
	ap := addrPort(s)
	return DestinationKey{Addr: ap.Addr(), Port: ap.Port()}
}

// mask returns a netmask that exists.
func mask(f Family, bits int) Netmask {
	m, err := PrefixNetmask(f, bits)
	if err != nil {
		panic(err)
	}
	return m
}

// random returns a source whose seed is shown when the test fails.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// pick returns one of choices.
func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

// randomAddr returns a unicast address that IPVS takes as a destination.
func randomAddr(r *rand.Rand, f Family) netip.Addr {
	if f == FamilyIPv4 {
		return netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
	}
	a := netip.MustParseAddr("2001:db8::").As16()
	for i := 4; i < len(a); i++ {
		a[i] = byte(r.Uint32())
	}
	return netip.AddrFrom16(a)
}

// randomService returns a valid service.
func randomService(r *rand.Rand) Service {
	f := pick(r, FamilyIPv4, FamilyIPv6)
	s := Service{
		Scheduler: pick(r, "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh",
			"fo", "ovf", "none"),
		Flags:   ServiceFlags(r.Uint32()) & 0x3d,
		Timeout: time.Duration(r.IntN(int(MaxPersistence/time.Second)+1)) * time.Second,
		Netmask: mask(f, 1+r.IntN(pick(r, 32, 32, int(f)*12+8))),
	}
	if f == FamilyIPv4 && r.IntN(4) == 0 {
		s.Netmask = Netmask{ignored: r.Uint32()}
	}
	if r.IntN(4) == 0 {
		s.PersistenceEngine = "sip"
	}
	if r.IntN(4) == 0 {
		s.ServiceKey = MarkService(f, 1+uint32(r.Uint64N(math.MaxUint32)))
		return s
	}
	s.ServiceKey = AddressService(pick(r, TCP, UDP, SCTP), netip.AddrPortFrom(randomAddr(r, f),
		uint16(r.Uint32())))
	if s.Port == 0 {
		s.Flags |= FlagPersistent
	}
	return s
}

// randomDestination returns a valid destination of a service of the family f.
func randomDestination(r *rand.Rand, f Family) Destination {
	d := Destination{
		DestinationKey: DestinationKey{Addr: randomAddr(r, f), Port: uint16(r.Uint32())},
		Weight:         r.Uint32() >> 1,
		Forward:        ForwardingMethod(r.Uint32N(5)),
		UpperThreshold: pick(r, 0, r.Uint32()>>1),
	}
	d.LowerThreshold = r.Uint32N(d.UpperThreshold + 1)
	if d.Forward == ForwardTunnel {
		d.Addr = randomAddr(r, pick(r, FamilyIPv4, FamilyIPv6))
		d.Tunnel = Tunnel{Type: TunnelType(r.Uint32N(3)), Flags: TunnelFlags(r.Uint32N(4))}
		if d.Tunnel.Type == TunnelGUE {
			d.Tunnel.Port = 1 + uint16(r.Uint32N(65535))
		}
	}
	return d
}

// randomStats returns statistics that fit in the 32-bit attributes too.
func randomStats(r *rand.Rand) (s Stats) {
	for typ := statsAttrConns; typ <= statsAttrOutBPS; typ++ {
		*s.counter(typ) = uint64(r.Uint32())
	}
	return s
}

// littleEndian skips a test whose expected bytes are those of a little-endian machine.
func littleEndian(tb testing.TB) {
	tb.Helper()
	if native.Uint16([]byte{1, 0}) != 1 {
		tb.Skip("the expected bytes are those of a little-endian machine")
	}
}

// unhex returns the bytes that s spells, ignoring spaces, line breaks and what follows a // on each
// line.
func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	var digits strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "//")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(digits.String())
	require.NoError(tb, err)
	return b
}

// recorded is one command of testdata/ipvsadm.txt and its messages, from the genlmsghdr on.
type recorded struct {
	command string
	sent    [][]byte
	got     [][]byte
}

//go:embed testdata/ipvsadm.txt
var ipvsadmText string // embedded, so that the test binary can run in a virtual machine

// recordings reads testdata/ipvsadm.txt.
func recordings(tb testing.TB) (list []recorded) {
	tb.Helper()
	littleEndian(tb)
	for line := range strings.Lines(ipvsadmText) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "ipvsadm "):
			list = append(list, recorded{command: line})
		case strings.HasPrefix(line, "> "):
			last := &list[len(list)-1]
			last.sent = append(last.sent, unhex(tb, line[2:]))
		case strings.HasPrefix(line, "< "):
			last := &list[len(list)-1]
			last.got = append(last.got, unhex(tb, line[2:]))
		}
	}
	require.NotEmpty(tb, list)
	return list
}

// many returns a batch that adds services with destinations each, and one that removes them.
func many(services, destinations int) (add, remove *Batch) {
	add, remove = &Batch{}, &Batch{}
	for i := range services {
		k := AddressService(TCP,
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80))
		add.NewService(Service{ServiceKey: k, Scheduler: "rr"})
		for j := range destinations {
			add.NewDestination(k, Destination{
				DestinationKey: DestinationKey{
					Addr: netip.AddrFrom4([4]byte{10, 244, byte(j), byte(i)}), Port: 8080},
				Weight: 1,
			})
		}
		remove.DelService(k)
	}
	return add, remove
}

// fakeClient returns a client of a new Fake.
func fakeClient(tb testing.TB) (*Client, *Fake) {
	tb.Helper()
	f := NewFake()
	c, err := f.Dial(tb.Context(), nil)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	return c, f
}

// submit sends the commands that fill adds.
func submit(tb testing.TB, c *Client, fill func(b *Batch)) error {
	tb.Helper()
	var b Batch
	fill(&b)
	return c.Submit(tb.Context(), &b)
}
