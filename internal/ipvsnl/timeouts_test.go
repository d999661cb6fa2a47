package ipvsnl

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimeouts(t *testing.T) {
	t.Parallel()
	littleEndian(t)
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
			b := appendTimeouts(nil, tt.timeouts)
			require.Equal(t, len(unhex(t, tt.want)), len(b))
			require.Equal(t, string(unhex(t, tt.want)), string(b))
			back, err := decodeTimeouts(b)
			require.NoError(t, err)
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
		{Timeouts{TCP: -time.Second}, "timeouts: tcp: invalid: -1s is negative"},
		{Timeouts{TCPFin: time.Millisecond}, "timeouts: tcp fin: invalid: 1ms is not a whole"},
		{Timeouts{UDP: 1 << 31 * time.Second}, "timeouts: udp: invalid"},
	} {
		err := tt.timeouts.Validate()
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, tt.want)
	}
}

func TestTheKernelsInfo(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	want := Info{Version: 0x010201, ConnTableSize: 4096}
	b := appendInfo(nil, want)
	require.Equal(t, unhex(t, "0800 0100 01020100 0800 0200 00100000"), b)
	got, err := decodeInfo(b)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func FuzzDecodeSmall(f *testing.F) {
	f.Add(appendTimeouts(nil, Timeouts{TCP: time.Second, TCPFin: time.Second, UDP: time.Second}))
	f.Add(appendInfo(nil, Info{Version: 1, ConnTableSize: 2}))
	f.Add(appendFamily(nil, familyName, fakeFamily))
	f.Fuzz(func(t *testing.T, data []byte) {
		if timeouts, err := decodeTimeouts(data); err == nil {
			back, err := decodeTimeouts(appendTimeouts(nil, timeouts))
			require.NoError(t, err)
			require.Equal(t, timeouts, back)
		}
		if info, err := decodeInfo(data); err == nil {
			back, err := decodeInfo(appendInfo(nil, info))
			require.NoError(t, err)
			require.Equal(t, info, back)
		}
		if name, _, err := decodeFamily(data); err == nil {
			require.LessOrEqual(t, len(name), familyNameLimit)
		}
	})
}
