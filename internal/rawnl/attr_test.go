package rawnl

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// everyAttribute writes a message with one attribute of each kind.
func everyAttribute(b *Batch) {
	b.Message(SubsysIPSet, 9, FlagExcl, 10, 0x0102, Object{Verb: "add", Kind: "set", Name: "s"})
	b.Attr(1, []byte{1, 2, 3, 4, 5})
	b.Text(2, "abcd")
	b.Attr(3, nil)
	b.U8(4, 0x11)
	b.U16(5, 0x1122)
	b.U32(6|AttrNetByteOrder, 0x11223344)
	b.U64(7, 0x1122334455667788)
	b.NativeU16(8, 0x1122)
	b.NativeU32(9, 0x11223344)
	b.NativeU64(10, 0x1122334455667788)
	outer := b.Nest(11)
	b.Raw([]byte{7, 0, 12, 0, 1, 2, 3})
	b.Attr(13, nil)
	b.End(outer)
	b.Text(14, "")
}

func TestAttributesAreWrittenByteForByte(t *testing.T) {
	t.Parallel()
	var b Batch
	everyAttribute(&b)
	require.Equal(t, unhex(t, `
		88000000 0906 0102 00000000 00000000 0a 00 0102
		0900 0100 01020304 05000000
		0900 0200 61626364 00000000
		0400 0300
		0500 0400 11000000
		0600 0500 11220000
		0800 0640 11223344
		0c00 0700 1122334455667788
		0600 0800 22110000
		0800 0900 44332211
		0c00 0a00 8877665544332211
		1000 0b80
			0700 0c00 01020300
			0400 0d00
		0500 0e00 00000000`), b.Bytes())
	require.NoError(t, b.seal())
}

func TestAttributesReadBackAsWritten(t *testing.T) {
	t.Parallel()
	var b Batch
	everyAttribute(&b)
	it := Attrs(b.Bytes()[frameLen:])
	next := func(typ uint16) *AttrIter {
		require.True(t, it.Next(), "attribute %d: %v", typ, it.Err())
		require.Equal(t, typ, it.Type())
		return &it
	}

	require.Equal(t, []byte{1, 2, 3, 4, 5}, next(1).Data())
	require.Equal(t, "abcd", next(2).Text())
	require.Empty(t, next(3).Data())
	require.EqualValues(t, 0x11, next(4).U8())
	require.EqualValues(t, 0x1122, next(5).U16())
	require.EqualValues(t, 0x11223344, next(6).U32())
	require.Equal(t, uint64(0x1122334455667788), next(7).U64())
	require.EqualValues(t, 0x1122, next(8).NativeU16())
	require.EqualValues(t, 0x11223344, next(9).NativeU32())
	require.Equal(t, uint64(0x1122334455667788), next(10).NativeU64())
	inner := next(11).Nest()
	require.True(t, inner.Next())
	require.EqualValues(t, 12, inner.Type())
	require.Equal(t, []byte{1, 2, 3}, inner.Data())
	require.True(t, inner.Next())
	require.EqualValues(t, 13, inner.Type())
	require.False(t, inner.Next())
	require.NoError(t, inner.Err())
	require.Empty(t, next(14).Text())
	require.False(t, it.Next())
	require.NoError(t, it.Err())
}

func TestMalformedAttributesEndTheWalk(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		bytes string
		want  string
	}{
		{"too short for a header", "0400",
			"malformed netlink message: 2 bytes after the last attribute"},
		{"shorter than its header", "0300 0100",
			"malformed netlink message: attribute 1 claims 3 bytes, 4 are there"},
		{"longer than what is there", "0c00 0180 00000000",
			"malformed netlink message: attribute 1 claims 12 bytes, 8 are there"},
		{"a tail too short for another", "0500 0100 01000000 ff",
			"malformed netlink message: 1 bytes after the last attribute"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			it := Attrs(unhex(t, tt.bytes))
			for it.Next() {
				require.NoError(t, it.Err())
			}
			require.ErrorIs(t, it.Err(), ErrMalformed)
			require.EqualError(t, it.Err(), tt.want)
			require.False(t, it.Next(), "it stays at the end")
		})
	}
}

func TestTheLastAttributeMayLackItsPadding(t *testing.T) {
	t.Parallel()
	it := Attrs(unhex(t, "0500 0100 07"))
	require.True(t, it.Next())
	require.EqualValues(t, 7, it.U8())
	require.False(t, it.Next())
	require.NoError(t, it.Err())
}

func TestNumbersOfAnotherLengthAreErrors(t *testing.T) {
	t.Parallel()
	getters := map[string]func(it *AttrIter) uint64{
		"U8":        func(it *AttrIter) uint64 { return uint64(it.U8()) },
		"U16":       func(it *AttrIter) uint64 { return uint64(it.U16()) },
		"U32":       func(it *AttrIter) uint64 { return uint64(it.U32()) },
		"U64":       func(it *AttrIter) uint64 { return it.U64() },
		"NativeU16": func(it *AttrIter) uint64 { return uint64(it.NativeU16()) },
		"NativeU32": func(it *AttrIter) uint64 { return uint64(it.NativeU32()) },
		"NativeU64": func(it *AttrIter) uint64 { return it.NativeU64() },
	}
	var b Batch
	b.Message(SubsysNFTables, 0, 0, 0, 0, Object{})
	b.Attr(5, []byte{1, 2, 3})
	b.Attr(6, []byte{1, 2, 3})
	attrs := b.Bytes()[frameLen:] // Bytes finishes the message, so the subtests share one call
	for name, get := range getters {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			it := Attrs(attrs)
			require.Zero(t, get(&it), "before Next there is nothing to get")
			it = Attrs(attrs)
			require.True(t, it.Next())
			require.Zero(t, get(&it))
			require.ErrorIs(t, it.Err(), ErrMalformed)
			require.ErrorContains(t, it.Err(), "attribute 5 has 3 bytes of data")
			require.False(t, it.Next(), "the walk is over")
		})
	}
}

func TestTextEndsAtTheFirstNUL(t *testing.T) {
	t.Parallel()
	var b Batch
	b.Message(SubsysNFTables, 0, 0, 0, 0, Object{})
	b.Attr(1, []byte("ab\x00cd\x00"))
	b.Attr(1, []byte("no end"))
	it := Attrs(b.Bytes()[frameLen:])
	require.True(t, it.Next())
	require.Equal(t, "ab", it.Text())
	require.True(t, it.Next())
	require.Equal(t, "no end", it.Text())
}

func FuzzAttrs(f *testing.F) {
	var b Batch
	everyAttribute(&b)
	f.Add(b.Bytes()[frameLen:], 30)
	f.Add([]byte{3, 0, 1, 0}, 0)
	f.Fuzz(func(t *testing.T, data []byte, offset int) {
		total := 0
		it := Attrs(data)
		for it.Next() {
			total += attrHeaderLen + len(it.Data())
			_ = it.Text()
			inner := it.Nest()
			for inner.Next() {
				require.LessOrEqual(t, len(inner.Data()), len(it.Data()))
			}
		}

		require.LessOrEqual(t, total, len(data))
		if it.Err() == nil {
			require.Equal(t, len(data), it.offset(), "without an error, everything was read")
		}
		path := AttrPath(data, offset)
		for i := 1; i < len(path); i++ {
			require.Less(t, len(path[i].Data), len(path[i-1].Data),
				"each step lies inside the one before")
		}
	})
}

func TestRandomTreesReadBackAsWritten(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var b Batch
		b.Message(SubsysNFTables, 1, 0, 0, 0, testObject)
		var want []PathStep
		writeTree(&b, r, 0, &want)
		require.NoError(t, b.seal())
		var got []PathStep
		readTree(t, Attrs(b.Bytes()[frameLen:]), 0, &got)
		require.Equal(t, want, got)
	}
}

// nestedTypes plus its depth is the type of a nested attribute that writeTree writes. Smaller types
// contain data.
const nestedTypes = 1000

func writeTree(b *Batch, r *rand.Rand, depth uint16, leaves *[]PathStep) {
	for range r.IntN(4) {
		if depth < 5 && r.IntN(2) == 0 {
			m := b.Nest(nestedTypes + depth)
			writeTree(b, r, depth+1, leaves)
			b.End(m)
			continue
		}

		data := bytes.Repeat([]byte{byte(r.Uint32())}, r.IntN(9))
		typ := uint16(r.IntN(nestedTypes))
		b.Attr(typ, data)
		*leaves = append(*leaves, PathStep{typ, data})
	}
}

func readTree(t *testing.T, it AttrIter, depth uint16, leaves *[]PathStep) {
	for it.Next() {
		if it.Type() == nestedTypes+depth {
			readTree(t, it.Nest(), depth+1, leaves)
			continue
		}

		*leaves = append(*leaves, PathStep{it.Type(), bytes.Clone(it.Data())})
	}

	require.NoError(t, it.Err())
}
