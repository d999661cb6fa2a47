package rawnl

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unhex reads bytes written for a little-endian machine, in hexadecimal with spaces and newlines.
func unhex(t *testing.T, s string) []byte {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the expected bytes are those of a little-endian machine")
	}
	return ok(hex.DecodeString(strings.Join(strings.Fields(s), "")))(t)
}

var testObject = Object{Verb: "add", Kind: "set", Name: "s", Within: "table ip t"}

// twoMessages writes a table and a set.
func twoMessages(b *Batch) {
	b.Message(SubsysNFTables, 0, FlagCreate, 2, 0, Object{Verb: "add", Kind: "table", Name: "t"})
	b.Text(1, "t")
	b.Message(SubsysNFTables, 9, FlagCreate|FlagExcl, 2, 0, testObject)
	b.Text(1, "t")
	desc := b.Nest(9)
	b.U32(1, 0x1000)
	b.End(desc)
}

func TestBatchIsWrittenByteForByte(t *testing.T) {
	t.Parallel()
	var b Batch
	twoMessages(&b)
	want := unhex(t, `
		1c000000 000a 0104 00000000 00000000 02 00 0000   0600 0100 74000000
		28000000 090a 0106 00000000 00000000 02 00 0000   0600 0100 74000000
		0c00 0980  0800 0100 00001000`)
	require.Equal(t, want, b.Bytes())
	require.NoError(t, b.Err())
	require.Equal(t, 2, b.Len())
	require.Equal(t, 28+len(want)+20, b.Size())
}

func TestTransactionWrapsTheBatch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		genID uint32
		begin string
	}{
		{"without a generation", 0, `14000000 1000 0100 07000000 00000000 00 00 000a`},
		{"with a generation", 0x2a,
			`1c000000 1000 0100 07000000 00000000 00 00 000a 0800 0100 0000002a`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var b Batch
			twoMessages(&b)
			before := append([]byte(nil), b.Bytes()...)
			want := append(unhex(t, tt.begin), before...)
			want = append(want, unhex(t, `14000000 1100 0100 0a000000 00000000 00 00 000a`)...)
			require.Equal(t, want, b.transaction(tt.genID, 7, 10))
			require.Equal(t, before, b.Bytes(), "the batch is as it was")
		})
	}
}

func TestResetGivesTheSameBytesFromDirtyMemory(t *testing.T) {
	t.Parallel()
	var b Batch
	everyAttribute(&b)
	want := append([]byte(nil), b.Bytes()...)
	dirty := b.buf[:cap(b.buf)]
	for i := range dirty {
		dirty[i] = 0xff
	}
	b.Reset()
	require.Zero(t, b.Len())
	require.Zero(t, b.Size())
	require.Nil(t, b.Bytes())
	everyAttribute(&b)
	require.Equal(t, want, b.Bytes())
}

// big is too long for an attribute.
var big = make([]byte, MaxAttr)

// message begins a message about testObject.
func message(b *Batch) { b.Message(SubsysNFTables, 9, 0, 2, 0, testObject) }

// mistakes are badly written batches and the errors that they report.
var mistakes = []struct {
	name  string
	write func(b *Batch)
	want  string
}{
	{"an attribute before any message", func(b *Batch) { b.U32(1, 1) },
		"malformed batch: before the first message: data comes before any message"},
	{"raw data before any message", func(b *Batch) { b.Raw([]byte{1, 0, 0, 0}) },
		"malformed batch: before the first message: data comes before any message"},
	{"an attribute that is too long", func(b *Batch) { message(b); b.Attr(3, big) },
		"malformed batch: add set s of table ip t: attribute 3 would be 65539 bytes long, " +
			"more than 65535"},
	{"a string that is too long", func(b *Batch) {
		message(b)
		b.Text(3, string(big[:MaxAttr-attrHeaderLen]))
	}, "malformed batch: add set s of table ip t: attribute 3 would be 65536 bytes long, " +
		"more than 65535"},
	{"a nested attribute that grew too long", func(b *Batch) {
		message(b)
		m := b.Nest(3)
		b.Attr(1, big[:60000])
		b.Attr(1, big[:6000])
		b.End(m)
	}, "malformed batch: add set s of table ip t: attribute 3 is 66012 bytes long, " +
		"more than 65535"},
	{"a nested attribute that is not closed", func(b *Batch) { message(b); b.Nest(3) },
		"malformed batch: add set s of table ip t: attribute 3 was not closed"},
	{"a nested attribute that the next message cuts off", func(b *Batch) {
		message(b)
		b.Nest(3)
		message(b)
	}, "malformed batch: add set s of table ip t: attribute 3 was not closed"},
	{"the wrong order of ends", func(b *Batch) {
		message(b)
		outer := b.Nest(1)
		b.Nest(2)
		b.End(outer)
	}, "malformed batch: add set s of table ip t: attributes are not closed in the order in " +
		"which they were begun"},
	{"an end too many", func(b *Batch) {
		message(b)
		m := b.Nest(1)
		b.End(m)
		b.End(m)
	}, "malformed batch: add set s of table ip t: attributes are not closed in the order in " +
		"which they were begun"},
	{"too deep", func(b *Batch) {
		message(b)
		for range maxNest + 1 {
			b.Nest(1)
		}
	}, "malformed batch: add set s of table ip t: attributes are nested more than 16 deep"},
	{"an object without a name", func(b *Batch) {
		b.Message(SubsysNFTables, 9, 0, 2, 0, Object{})
		b.Nest(3)
	}, "malformed batch: message 0: attribute 3 was not closed"},
}

func TestMistakesStickToTheBatch(t *testing.T) {
	t.Parallel()
	for _, tt := range mistakes {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var b Batch
			tt.write(&b)
			err := b.seal()
			require.ErrorIs(t, err, ErrBadBatch)
			require.EqualError(t, err, tt.want)
			message(&b)
			b.Text(1, "more")
			require.NotEmpty(t, b.Bytes())
			require.Equal(t, err, b.seal(), "the first mistake is the one reported")
			b.Reset()
			twoMessages(&b)
			require.NoError(t, b.seal(), "reset forgets it")
		})
	}
}

func TestErrLeavesOpenAttributesAlone(t *testing.T) {
	t.Parallel()
	var b Batch
	b.Message(SubsysNFTables, 9, 0, 2, 0, testObject)
	m := b.Nest(3)
	require.NoError(t, b.Err())
	b.U32(1, 1)
	b.End(m)
	require.NoError(t, b.seal())
}

// elementKey is a fixed buffer, so that the benchmark measures only appending.
var elementKey = make([]byte, 16)

// appendElements writes n elements of a map from a concatenated key to an address and a port, in as
// many messages as necessary.
func appendElements(b *Batch, n int) {
	const perMessage = 1000
	var list Mark
	for i := range n {
		if i%perMessage == 0 {
			if i > 0 {
				b.End(list)
			}
			b.Message(SubsysNFTables, 12, FlagCreate, 2, 0, testObject)
			b.Text(1, "kernlb")
			b.Text(2, "endpoints-10")
			list = b.Nest(3)
		}

		elem := b.Nest(1)
		key := b.Nest(1)
		native.PutUint32(elementKey, uint32(i))
		b.Attr(1, elementKey)
		b.End(key)
		data := b.Nest(2)
		b.Attr(1, elementKey[:8])
		b.End(data)
		b.End(elem)
	}

	b.End(list)
}

func TestAppendingAllocatesNothing(t *testing.T) {
	var b Batch
	fill := func() {
		b.Reset()
		everyAttribute(&b)
		appendElements(&b, 5000)
	}

	fill()
	require.NoError(t, b.seal())
	require.Zero(t, testing.AllocsPerRun(20, fill))
}

func TestGrowing(t *testing.T) {
	t.Parallel()
	var a, b Batch
	a.Grow(3, 1000)
	room := cap(a.buf)
	require.GreaterOrEqual(t, room, 1000)
	for _, batch := range []*Batch{&a, &b} {
		batch.Message(SubsysNFTables, 1, 0, 0, 0, Object{})
		batch.U32(1, 2)
	}

	require.Equal(t, b.Bytes(), a.Bytes())
	require.Equal(t, room, cap(a.buf))
	a.Grow(1, 2000)
	require.Equal(t, b.Bytes(), a.Bytes(), "what is there stays")
}
