package ipvsnl

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAMessageHasBothHeaders(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	b := appendFrame([]byte{0xee, 0xee, 0xee, 0xee}, ackFlags, uint8(CommandNewService))
	b = endMessage(appendU32(b, 8, 1), 4)
	stamp(b[4:], 0x1b, 0x01020304)
	require.Equal(t, unhex(t, `
		eeeeeeee
		1c000000 1b00 0500 04030201 00000000 // nlmsghdr: length, type, flags, sequence number, port
		01 01 0000                           // genlmsghdr: command, version, reserved
		0800 0800 01000000
	`), b)
	m, rest, err := nextMessage(b[4:])
	require.NoError(t, err)
	require.Empty(t, rest)
	require.Equal(t, message{typ: 0x1b, flags: ackFlags, seq: 0x01020304, body: b[20:]}, m)
	cmd, data, err := m.command()
	require.NoError(t, err)
	require.Equal(t, uint8(1), cmd)
	require.Equal(t, b[24:], data)
}

func TestMessagesThatAreCutOffAreRefused(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	for _, tt := range []struct{ name, data, want string }{
		{"half a header", "10000000 1b00 0000", "8 bytes are too short"},
		{"a length below that of the header", "0f000000 1b00 0000 01000000 00000000",
			"claims 15 bytes"},
		{"a length beyond the end", "11000000 1b00 0000 01000000 00000000",
			"claims 17 bytes, 16 are there"},
		{"a length that wraps around", "ffffffff 1b00 0000 01000000 00000000",
			"claims 4294967295 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := nextMessage(unhex(t, tt.data))
			require.ErrorIs(t, err, ErrMalformed)
			require.ErrorContains(t, err, tt.want)
		})
	}
	_, _, err := message{body: []byte{1, 1}}.command()
	require.ErrorIs(t, err, ErrMalformed)
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	const request = "30000000 1b00 0500 07000000 00000000"
	for _, tt := range []struct {
		name       string
		typ, flags uint16
		body       string
		want       verdict
		fail       string
	}{
		{name: "an acknowledgement", typ: typeError, flags: flagCapped, body: "00000000" + request},
		{name: "an error", typ: typeError, flags: flagCapped, body: "efffffff" + request,
			want: verdict{errno: syscall.EEXIST}},
		{name: "an error with text, capped", typ: typeError, flags: flagCapped | flagAckTLVs,
			body: "ffffffff" + request + "0800 0100 68657900", want: verdict{errno: syscall.EPERM,
				text: "hey"}},
		{name: "an error with text after the quoted request", typ: typeError, flags: flagAckTLVs,
			body: "ffffffff 14000000 1b00 0500 07000000 00000000 0f010000 0800 0100 68657900",
			want: verdict{errno: syscall.EPERM, text: "hey"}},
		{name: "an error with an attribute that nobody knows", typ: typeError, flags: flagCapped |
			flagAckTLVs,
			body: "ffffffff" + request + "0800 0900 68657900", want: verdict{errno: syscall.EPERM}},
		{name: "the end of a dump", typ: typeDone, flags: flagMulti, body: "00000000"},
		{name: "the end of a dump, with no number", typ: typeDone, flags: flagMulti},
		{name: "a dump that failed, with text", typ: typeDone, flags: flagMulti | flagAckTLVs,
			body: "feffffff 0800 0100 68657900", want: verdict{errno: syscall.ENOENT, text: "hey"}},
		{name: "no number", typ: typeError, body: "00", fail: "an error of 1 bytes"},
		{name: "a positive number", typ: typeError, body: "01000000" + request,
			fail: "error number 1"},
		{name: "the least number", typ: typeError, body: "00000080" + request,
			fail: "error number -2147483648"},
		{name: "a request that is cut off", typ: typeError, flags: flagAckTLVs,
			body: "ffffffff 30000000", fail: "quotes more"},
		{name: "a request longer than the message", typ: typeError, flags: flagAckTLVs,
			body: "ffffffff" + request,
			fail: "quotes more"},
		{name: "an attribute that is cut off", typ: typeError, flags: flagCapped | flagAckTLVs,
			body: "ffffffff" + request + "0c00 0100",
			fail: "acknowledgement: an attribute claims 12 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := message{typ: tt.typ, flags: tt.flags, body: unhex(t, tt.body)}.verdict()
			if tt.fail != "" {
				require.ErrorIs(t, err, ErrMalformed)
				require.ErrorContains(t, err, tt.fail)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestTheFakesVerdictsAreTheKernels(t *testing.T) {
	t.Parallel()
	littleEndian(t)
	request := message{typ: 0x1b, flags: ackFlags, seq: 7, body: make([]byte, 32)}
	b := appendVerdict(nil, typeError, request, syscall.EEXIST)
	require.Equal(t, unhex(t, `
		24000000 0200 0001 07000000 00000000 // NLMSG_ERROR, NLM_F_CAPPED
		efffffff
		30000000 1b00 0500 07000000 00000000 // the header of the request
	`), b)
	b = appendVerdict(nil, typeDone, request, 0)
	require.Equal(t, unhex(t, "14000000 0300 0200 07000000 00000000 00000000"), b)
}

func FuzzMessage(f *testing.F) {
	request := message{typ: 0x1b, flags: ackFlags, seq: 7, body: make([]byte, 32)}
	f.Add(appendVerdict(nil, typeError, request, syscall.EEXIST))
	f.Add(appendVerdict(appendVerdict(nil, typeDone, request, 0), typeError, request, 0))
	f.Add(appendGetFamily(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		for len(data) > 0 {
			m, rest, err := nextMessage(data)
			if err != nil {
				require.ErrorIs(t, err, ErrMalformed)
				return
			}
			require.Less(t, len(rest), len(data))
			data = rest
			if v, err := m.verdict(); err == nil {
				require.LessOrEqual(t, int(v.errno), errnoLimit)
			}
			if _, body, err := m.command(); err == nil {
				_, _, err = decodeFamily(body)
				requireMalformed(t, err)
			}
			describe(append([]byte(nil), data...))
		}
	})
}

// requireMalformed reports an error that is neither nil nor ErrMalformed.
func requireMalformed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		require.ErrorIs(t, err, ErrMalformed)
	}
}
