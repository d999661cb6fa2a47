package ipvsnl

import (
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/must"
)

// Keys that many tests use.
var (
	Web   = AddressService(TCP, AddrPort("10.96.0.1:80"))
	DNS6  = AddressService(UDP, AddrPort("[2001:db8::1]:53"))
	Marks = MarkService(FamilyIPv4, 7)
)

// Wanted returns a service with few settings.
func Wanted(k ServiceKey) Service { return Service{ServiceKey: k, Scheduler: "rr"} }

// Dest returns a destination with few settings.
func Dest(s string) Destination { return Destination{DestinationKey: DestKey(s), Weight: 1} }

// AddrPort parses an address and a port.
func AddrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// DestKey parses a key.
func DestKey(s string) DestinationKey {
	ap := AddrPort(s)
	return DestinationKey{Addr: ap.Addr(), Port: ap.Port()}
}

// Random returns a random source. If the test fails, it shows the seed.
func Random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// LittleEndian skips a test on a big-endian machine, because its expected bytes are little-endian.
func LittleEndian(tb testing.TB) {
	tb.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		tb.Skip("the expected bytes are those of a little-endian machine")
	}
}

// Unhex returns the bytes that s spells, ignoring spaces, line breaks and comments after //.
func Unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	var digits strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "//")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	return ok(hex.DecodeString(digits.String()))(tb)
}

// Recorded is one command of testdata/ipvsadm.txt and its messages, from the genlmsghdr on.
type Recorded struct {
	Command string
	Sent    [][]byte
	Got     [][]byte
}

//go:embed testdata/ipvsadm.txt
var ipvsadmText string // embedded, so that the test binary can run in a virtual machine

// Recordings reads testdata/ipvsadm.txt.
func Recordings(tb testing.TB) (list []Recorded) {
	tb.Helper()
	LittleEndian(tb)
	for line := range strings.Lines(ipvsadmText) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "ipvsadm "):
			list = append(list, Recorded{Command: line})
		case strings.HasPrefix(line, "> "):
			last := &list[len(list)-1]
			last.Sent = append(last.Sent, Unhex(tb, line[2:]))
		case strings.HasPrefix(line, "< "):
			last := &list[len(list)-1]
			last.Got = append(last.Got, Unhex(tb, line[2:]))
		}
	}
	require.NotEmpty(tb, list)
	return list
}

// Attrs returns the attributes that put appends.
func Attrs(put func(b *rawnl.Batch)) []byte {
	var b rawnl.Batch
	begin(&b, 0)
	put(&b)
	return b.Bytes()[headersLen:]
}

// Inside returns the attribute typ around the attributes that put appends.
func Inside(typ uint16, put func(b *rawnl.Batch)) []byte {
	return Attrs(func(b *rawnl.Batch) {
		m := b.Nest(typ)
		put(b)
		b.End(m)
	})
}

// Many returns a batch that adds services with so many destinations each, and one that removes
// them.
func Many(services, destinations int) (add, remove *Batch) {
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

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
