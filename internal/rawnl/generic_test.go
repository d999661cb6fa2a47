package rawnl

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// testFamily is the number of the generic netlink family "TEST".
const testFamily = 0x21

// familyReply is the controller's answer: the family has the number id.
func familyReply(m rawnltest.Message, id uint16) []any {
	var b Batch
	b.Command(1, 2, 0, Object{}) // CTRL_CMD_NEWFAMILY
	b.Text(attrFamilyName, "TEST")
	b.NativeU16(attrFamilyID, id)
	return []any{rawnltest.Reply(familyController, 0, m.Seq, b.Bytes()[headerLen:]),
		rawnltest.Error(m, 0, "", 0)}
}

// dialTest returns a connection to the family "TEST" of a fake kernel.
func dialTest(t *testing.T, answer func(r messages) []any) (*Conn, *rawnltest.Kernel) {
	t.Helper()
	k := &rawnltest.Kernel{Answer: func(r messages) []any { return familyReply(r[0], testFamily) }}
	c := ok(DialGeneric(t.Context(), "TEST", "", &Config{Socket: k}))(t)
	k.Answer, k.Sent = answer, nil
	return c, k
}

func TestAFamilyIsAskedForByItsName(t *testing.T) {
	t.Parallel()
	k := &rawnltest.Kernel{Answer: func(r messages) []any { return familyReply(r[0], testFamily) }}
	ok(DialGeneric(t.Context(), "TEST", "test_module", &Config{Socket: k}))(t)
	require.Equal(t, [][]byte{unhex(t, `20000000 1000 0500 01000000 00000000 03 01 0000
		0900 0200 5445535400 000000`)}, k.Sent)
	require.Empty(t, k.Loaded)
}

func TestAFamilyWhoseModuleIsNotLoadedIsAskedForTwice(t *testing.T) {
	t.Parallel()
	k := &rawnltest.Kernel{}
	k.Answer = func(r messages) []any {
		if len(k.Loaded) == 0 {
			return []any{rawnltest.Error(r[0], syscall.ENOENT, "", 0)}
		}
		return familyReply(r[0], testFamily)
	}

	_, err := DialGeneric(t.Context(), "TEST", "", &Config{Socket: k})
	require.ErrorIs(t, err, syscall.ENOENT)
	require.EqualError(t, err, "open a generic netlink connection: "+
		"find generic netlink family TEST: no such file or directory")
	require.True(t, k.Closed)
	require.Empty(t, k.Loaded)
	ok(DialGeneric(t.Context(), "TEST", "test_module", &Config{Socket: k}))(t)
	require.Equal(t, []string{"test_module"}, k.Loaded)
}

func TestAControllerThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer func(m rawnltest.Message) []any
		want   string
	}{
		{"a number of netlink's own", func(m rawnltest.Message) []any {
			return familyReply(m, 3)
		}, "find generic netlink family TEST: malformed netlink message: its number is 3"},
		{"no reply", func(m rawnltest.Message) []any {
			return familyReply(m, testFamily)[1:]
		}, "its number is 0"},
		{"attributes that are cut off", func(m rawnltest.Message) []any {
			body := []byte{1, 2, 0, 0, 9, 0, 1, 0}
			return []any{rawnltest.Reply(familyController, 0, m.Seq, body),
				rawnltest.Error(m, 0, "", 0)}
		}, "attribute 1 claims 9 bytes"},
		{"a refusal", func(m rawnltest.Message) []any {
			return []any{rawnltest.Error(m, syscall.ENOMEM, "", 0)}
		}, "find generic netlink family TEST: cannot allocate memory"},
		{"half a message", func(rawnltest.Message) []any {
			return []any{[]byte{1, 2, 3}}
		}, "3 bytes are too short"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			k := &rawnltest.Kernel{Answer: func(r messages) []any { return tt.answer(r[0]) }}
			_, err := DialGeneric(t.Context(), "TEST", "", &Config{Socket: k})
			require.ErrorContains(t, err, tt.want)
			require.True(t, k.Closed)
		})
	}
}

func TestCommandsHaveTheNumberOfTheirFamily(t *testing.T) {
	t.Parallel()
	c, k := dialTest(t, func(r messages) []any {
		return []any{rawnltest.Error(r[len(r)-1], 0, "", 0)}
	})
	var b Batch
	b.Command(3, 1, 0, Object{Verb: "delete"})
	b.NativeU32(8, 1)
	b.Command(4, 1, 0, Object{})
	ok(c.SendAll(t.Context(), &b, nil))(t)
	require.Equal(t, unhex(t, `1c000000 2100 0100 02000000 00000000 03 01 0000 0800 0800 01000000
		14000000 2100 0500 03000000 00000000 04 01 0000`), k.Sent[0])
}

func TestAModuleIsAskedForOnce(t *testing.T) {
	t.Parallel()
	c, k := dialTest(t, nil)
	for _, name := range []string{"a", "b", "a"} {
		require.NoError(t, c.LoadModule(t.Context(), name))
	}
	require.Equal(t, []string{"a", "b"}, k.Loaded)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.EqualError(t, c.LoadModule(ctx, "c"), "load the module c: context canceled")
}

// namer describes messages, and gives ENOENT a meaning.
type namer struct{}

var errNoSuchThing = errors.New("no such thing")

func (namer) DescribePart(msg []byte, offset int) string {
	it := Attrs(msg[frameLen:])
	if offset != 0 || !it.Next() {
		return ""
	}
	return it.Text()
}

func (namer) Explain(errno syscall.Errno) error {
	if errno == syscall.ENOENT {
		return errNoSuchThing
	}
	return nil
}

func TestAnErrnoMayHaveAMeaning(t *testing.T) {
	t.Parallel()
	c, _ := dialTest(t, func(r messages) []any {
		return []any{rawnltest.Error(r[0], syscall.ENOENT, "", 0),
			rawnltest.Error(r[1], syscall.EPERM, "no", 0)}
	})
	var b Batch
	for range 2 {
		b.Command(1, 1, 0, Object{Verb: "get", Part: namer{}})
		b.Text(1, "thing")
	}

	_, err := c.SendAll(t.Context(), &b, nil)
	require.EqualError(t, err,
		"get thing: no such thing; get thing: operation not permitted (no)")
	require.ErrorIs(t, err, errNoSuchThing)
	require.ErrorIs(t, err, syscall.ENOENT)
	require.Nil(t, Refusals(err)[1].Meaning)
}
