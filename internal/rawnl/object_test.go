package rawnl

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestObjectsAreNamedInPlainWords(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		obj    Object
		part   string
		text   string
		labels string
	}{
		{"everything", testObject, "element 10.0.0.1", "element 10.0.0.1 in set s of table ip t",
			"add set s of table ip t"},
		{"no part", testObject, "", "set s of table ip t", "add set s of table ip t"},
		{"not within anything", Object{Verb: "add", Kind: "table", Name: "ip t"}, "", "table ip t",
			"add table ip t"},
		{"only a name", Object{Verb: "delete", Name: "tcp 10.0.0.1"}, "", "tcp 10.0.0.1",
			"delete tcp 10.0.0.1"},
		{"nothing", Object{}, "", "", "message 3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.text, tt.obj.text(tt.part))
			require.Equal(t, tt.labels, tt.obj.label(3))
			if tt.part == "" {
				require.Equal(t, tt.text, tt.obj.String())
			}
		})
	}
}

// describeElement names the element for which the kernel refused a message of appendNumbers.
func describeElement(msg []byte, offset int) string {
	path := AttrPath(msg, offset)
	if len(path) < 2 {
		return ""
	}
	key := Attrs(path[1].Data) // of the element
	for key.Next() {
		if key.Type() != 1 {
			continue
		}
		if value := key.Nest(); value.Next() && len(value.Data()) == 4 {
			return fmt.Sprintf("element %d", binary.BigEndian.Uint32(value.Data()))
		}
	}

	return ""
}

// appendNumbers writes one message that adds the given elements to the set s of table t.
func appendNumbers(b *Batch, flags uint16, numbers ...uint32) {
	obj := testObject
	obj.Part = DescribeFunc(describeElement)
	b.Message(SubsysNFTables, 12, FlagCreate|flags, 2, 0, obj)
	b.Text(1, "t")
	b.Text(2, "s")
	list := b.Nest(3)
	for _, n := range numbers {
		elem := b.Nest(1)
		key := b.Nest(1)
		b.U32(1, n)
		b.End(key)
		b.End(elem)
	}

	b.End(list)
}

func TestThePartToBlameIsFoundFromItsOffset(t *testing.T) {
	t.Parallel()
	var b Batch
	appendNumbers(&b, 0, 10, 20, 30)
	require.NoError(t, b.seal())
	first := frameLen + 8 + 8 + 4 // both headers, two names, the header of the list
	tests := []struct {
		name   string
		offset int
		want   string
	}{
		{"none given", 0, "set s of table ip t"},
		{"in the header", 7, "set s of table ip t"},
		{"beyond the message", 4096, "set s of table ip t"},
		{"the name of the set", frameLen + 8, "set s of table ip t"},
		{"the first element", first, "element 10 in set s of table ip t"},
		{"the last element", first + 2*16, "element 30 in set s of table ip t"},
		{"the key of the second element", first + 16 + 4, "element 20 in set s of table ip t"},
		{"the middle of a header", first + 2, "set s of table ip t"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, b.msgs[0].obj.blame(b.At(0), tt.offset))
		})
	}
}

func TestAttrPathListsTheAttributesAround(t *testing.T) {
	t.Parallel()
	var b Batch
	appendNumbers(&b, 0, 10, 20)
	msg := b.Bytes()
	value := len(msg) - 8
	path := AttrPath(msg, value)
	require.Len(t, path, 4)
	require.EqualValues(t, 3, path[0].Type)
	require.Equal(t, []byte{0, 0, 0, 20}, path[3].Data)
	require.Nil(t, AttrPath(msg, len(msg)))
	require.Nil(t, AttrPath(msg, 0))
	require.Nil(t, AttrPath(msg, value+4), "data is not an attribute")
	require.Nil(t, AttrPath(nil, 20))
}
