package ipvsnl

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

func TestTimeouts(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for _, tt := range []struct {
		name     string
		timeouts Timeouts
		want     string
	}{
		{"all of them", Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute,
			UDP: 5 * time.Minute},
			"0800 0400 84030000 0800 0500 78000000 0800 0600 2c010000"},
		{"those that are zero are left out", Timeouts{UDP: time.Second}, "0800 0600 01000000"},
		{"none", Timeouts{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, tt.timeouts.Validate())
			b := Attrs(func(b *rawnl.Batch) { PutTimeouts(b, tt.timeouts) })
			require.Equal(t, len(Unhex(t, tt.want)), len(b))
			require.Equal(t, string(Unhex(t, tt.want)), string(b))
			back := ok(ParseTimeouts(b))(t)
			require.Equal(t, tt.timeouts, back)
		})
	}
}

func TestTimeoutsThatTheKernelCannotHaveAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		timeouts Timeouts
		want     string
	}{
		{Timeouts{TCP: -time.Second}, "TCP: -1s: want whole seconds, at most 2147483647"},
		{Timeouts{TCPFin: time.Millisecond}, "TCPFin: 1ms: want whole seconds"},
		{Timeouts{UDP: 1 << 31 * time.Second}, "UDP: "},
	} {
		require.ErrorContains(t, tt.timeouts.Validate(), tt.want)
	}
}

func FuzzParseSettings(f *testing.F) {
	f.Add(Attrs(func(b *rawnl.Batch) {
		PutTimeouts(b, Timeouts{TCP: time.Second, TCPFin: time.Second, UDP: time.Second})
	}))
	f.Add([]byte("\x08\x00\x01\x00\x01\x02\x01\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if timeouts, err := ParseTimeouts(data); err == nil {
			back := ok(ParseTimeouts(Attrs(func(b *rawnl.Batch) { PutTimeouts(b, timeouts) })))(t)
			require.Equal(t, timeouts, back)
		}
	})
}
