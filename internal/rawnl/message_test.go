package rawnl

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVerdictsOfTheKernel(t *testing.T) {
	t.Parallel()
	uncapped := unhex(t, `40000000 0200 0002 05000000 00000000 feffffff
		15000000 0000 0000 05000000 00000000 aabbccdd 11000000
		0700 0100 686900 00`)
	tests := []struct {
		name string
		data []byte
		want verdict
	}{
		{"an acknowledgement", answer(5, 0, "", 0), verdict{}},
		{"an error", answer(5, syscall.ENOENT, "", 0), verdict{errno: syscall.ENOENT}},
		{"an error with text and offset", answer(5, syscall.EINVAL, "bad", 36),
			verdict{errno: syscall.EINVAL, text: "bad", offset: 36}},
		{"an error that quotes the request", uncapped[:len(uncapped):len(uncapped)],
			verdict{errno: syscall.ENOENT, text: "hi"}},
		{"the end of a dump", unhex(t, "14000000 0300 0200 05000000 00000000 00000000"), verdict{}},
		{"the end of a dump that says nothing", unhex(t, "10000000 0300 0200 05000000 00000000"),
			verdict{}},
		{"the end of a dump with an error",
			unhex(t, "1c000000 0300 0202 05000000 00000000 feffffff 0700 0100 6869 0000"),
			verdict{errno: syscall.ENOENT, text: "hi"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			native.PutUint32(tt.data, uint32(len(tt.data)))
			p, rest, err := nextPacket(tt.data)
			require.NoError(t, err)
			require.Empty(t, rest)
			require.EqualValues(t, 5, p.seq)
			v := ok(p.verdict())(t)
			require.Equal(t, tt.want, v)
		})
	}
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, bytes, want string
	}{
		{"half a header", "10000000 0200", "6 bytes are too short for a header"},
		{"shorter than a header", "0f000000 0200 0000 05000000 00000000",
			"it claims 15 bytes, 16 are there"},
		{"longer than the datagram", "ffffffff 0200 0000 05000000 00000000",
			"it claims 4294967295 bytes, 16 are there"},
		{"an error without a number", "10000000 0200 0000 05000000 00000000",
			"an error of 0 bytes"},
		{"a positive error number", "14000000 0200 0000 05000000 00000000 01000000",
			"error number 1 is positive"},
		{"attributes, but no request", "14000000 0200 0002 05000000 00000000 ffffffff",
			"an error of 4 bytes"},
		{"a request longer than the error",
			"24000000 0200 0002 05000000 00000000 ffffffff ffffffff 00000000 00000000 00000000",
			"an error quotes 4294967295 bytes, 16 are there"},
		{"a malformed attribute", "18000000 0300 0202 05000000 00000000 ffffffff 0100 0100",
			"attribute 1 claims 1 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, _, err := nextPacket(unhex(t, tt.bytes))
			if err == nil {
				_, err = p.verdict()
			}
			require.ErrorIs(t, err, ErrMalformed)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestMessagesAreTakenApart(t *testing.T) {
	t.Parallel()
	data := unhex(t, `1c000000 090a 0208 05000000 00000000 0a 00 0102 0800 0100 00000007
		14000000 0001 0200 05000000 00000000 02 00 0000`)
	p, rest, err := nextPacket(data)
	require.NoError(t, err)
	m := ok(p.message())(t)
	require.Equal(t, Message{Subsys: SubsysNFTables, Type: 9, Flags: 0x802, Family: 10,
		ResID: 0x102, Attrs: data[20:28:28]}, m)
	p, rest, err = nextPacket(rest)
	require.NoError(t, err)
	require.Empty(t, rest)
	m = ok(p.message())(t)
	require.Equal(t, SubsysConntrack, m.Subsys)
	require.Empty(t, m.Attrs)
	require.ErrorIs(t, errOf(packet{typ: 0xa09, body: []byte{1}}.message()), ErrMalformed)
}

func TestGenerationsAreParsed(t *testing.T) {
	t.Parallel()
	write := func(fill func(b *Batch)) Message {
		var b Batch
		b.Message(SubsysNFTables, msgNewGen, 0, 0, 0, Object{})
		fill(&b)
		return Message{Subsys: SubsysNFTables, Type: msgNewGen, Port: 5,
			Attrs: b.Bytes()[frameLen:]}
	}

	g, ok, err := write(func(b *Batch) {
		b.U32(1, 7)
		b.U32(2, 99)
		b.Text(3, "nft")
		b.Attr(50, nil)
	}).Generation()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, GenInfo{ID: 7, ProcPID: 99, ProcName: "nft", Port: 5}, g)
	_, ok, err = Message{Subsys: SubsysNFTables}.Generation()
	require.False(t, ok)
	require.NoError(t, err)
	for _, m := range []Message{write(func(b *Batch) { b.U32(2, 99) }),
		write(func(b *Batch) { b.U8(1, 7) })} {
		_, ok, err = m.Generation()
		require.True(t, ok)
		require.ErrorIs(t, err, ErrMalformed)
	}

	require.EqualValues(t, 8, NextGenID(7))
	require.EqualValues(t, 1, NextGenID(1<<32-1), "the kernel skips 0")
}

func FuzzMessages(f *testing.F) {
	f.Add(answer(1, syscall.ENOENT, "no such set", 36))
	f.Add(append(answer(1, 0, "", 0), answer(2, syscall.EPERM, "", 0)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		for len(data) > 0 {
			p, rest, err := nextPacket(data)
			if err != nil {
				require.ErrorIs(t, err, ErrMalformed)
				return
			}

			require.Less(t, len(rest), len(data), "every step gets on")
			for _, typ := range []uint16{msgError, msgDone} {
				p.typ = typ
				v, err := p.verdict()
				require.True(t, err == nil || errors.Is(err, ErrMalformed))
				require.GreaterOrEqual(t, v.offset, 0)
			}

			if m, err := p.message(); err == nil {
				_, _, err = m.Generation()
				require.True(t, err == nil || errors.Is(err, ErrMalformed))
			}

			data = rest
		}
	})
}

func TestMessagesOfADatagram(t *testing.T) {
	t.Parallel()
	data := append(append(reply(0, 0, 1), done(0, 0, 0)...), reply(0, FlagCreate, 2)...)
	var got []Message
	take := func(m Message) error { got = append(got, m); return nil }
	require.NoError(t, Messages(data, take))
	require.Len(t, got, 2)
	require.Equal(t, Message{Subsys: SubsysNFTables, Type: 12, Flags: FlagCreate, Family: 2,
		ResID: 2, Attrs: []byte{}}, got[1])
	require.ErrorIs(t, Messages(data[:len(data)-1], take), ErrMalformed)
	require.ErrorIs(t, Messages(data, func(Message) error { return ErrClosed }), ErrClosed)
}
