package cpio

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type member struct {
	Header
	Data string
}

func archive(t *testing.T, members ...member) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := NewWriter(&buf)
	for _, m := range members {
		m.Size = int64(len(m.Data))
		require.NoError(t, w.Write(m.Header, strings.NewReader(m.Data)))
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func readAll(r *Reader) ([]member, error) {
	var out []member
	for {
		h, err := r.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return out, err
		}
		out = append(out, member{h, string(data)})
	}
}

func TestArchiveBytes(t *testing.T) {
	t.Parallel()
	got := archive(t,
		member{Header: Header{Name: "dev/console", Mode: TypeChar | 0o600, Major: 5, Minor: 1}},
		member{Header: Header{Name: "init", Mode: TypeRegular | 0o755}, Data: "hello"})
	want := "070701" + "00000001" + "00002180" + "00000000" + "00000000" + "00000001" + "00000000" +
		"00000000" +
		"00000000" + "00000000" + "00000005" + "00000001" + "0000000C" + "00000000" +
		"dev/console\x00" + "\x00\x00" +
		"070701" + "00000002" + "000081ED" + "00000000" + "00000000" + "00000001" + "00000000" +
		"00000005" +
		"00000000" + "00000000" + "00000000" + "00000000" + "00000005" + "00000000" + "init\x00" +
		"\x00" +
		"hello\x00\x00\x00" +
		"070701" + "00000000" + "00000000" + "00000000" + "00000000" + "00000001" + "00000000" +
		"00000000" +
		"00000000" + "00000000" + "00000000" + "00000000" + "0000000B" + "00000000" +
		"TRAILER!!!\x00" + "\x00\x00\x00"
	require.Equal(t, want, strings.TrimRight(string(got), "\x00")+"\x00\x00\x00\x00")
	require.Zero(t, len(got)%512, "padded so that another archive can follow")
}

func TestArchiveRoundTrip(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	types := []uint32{TypeSymlink, TypeRegular, TypeDir, TypeChar}
	for range 200 {
		var in []member
		for i := range rnd.IntN(6) {
			data := make([]byte, rnd.IntN(20))
			for j := range data {
				data[j] = byte(rnd.Uint32())
			}
			in = append(in, member{
				Header: Header{
					Name:  strings.Repeat("x", i+1),
					Mode:  types[rnd.IntN(len(types))] | rnd.Uint32N(0o1000),
					Size:  int64(len(data)),
					Major: rnd.Uint32(), Minor: rnd.Uint32(),
				},
				Data: string(data),
			})
		}
		out, err := readAll(NewReader(bytes.NewReader(archive(t, in...))))
		require.NoError(t, err)
		require.Equal(t, in, out)
	}
}

func TestCpioToolReadsTheArchive(t *testing.T) {
	t.Parallel()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("no busybox on this machine: its cpio is the independent reader")
	}
	cmd := exec.Command(busybox, "cpio", "-t", "-v")
	cmd.Stdin = bytes.NewReader(archive(t,
		member{Header: Header{Name: "bin", Mode: TypeDir | 0o755}},
		member{Header: Header{Name: "bin/sh", Mode: TypeSymlink | 0o777}, Data: "busybox"},
		member{Header: Header{Name: "bin/busybox", Mode: TypeRegular | 0o755}, Data: "abc"}))
	out, err := cmd.Output()
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, 3)
	require.Contains(t, lines[1], "bin/sh -> busybox")
	require.Contains(t, lines[2], "-rwxr-xr-x")
}

func TestWriteRefusesBadMembers(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]Header{
		"an empty name":    {},
		"an absolute name": {Name: "/init"},
		"the trailer":      {Name: "TRAILER!!!"},
		"a huge size":      {Name: "a", Size: 1 << 32},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Error(t, NewWriter(io.Discard).Write(h, nil))
		})
	}
	t.Run("data shorter than the size", func(t *testing.T) {
		t.Parallel()
		err := NewWriter(io.Discard).Write(Header{Name: "a", Size: 2}, strings.NewReader("x"))
		require.ErrorIs(t, err, io.EOF)
	})
}

func TestReadRefusesBrokenArchives(t *testing.T) {
	t.Parallel()
	whole := archive(t, member{Header: Header{Name: "a", Mode: TypeRegular}, Data: "data"})
	for name, data := range map[string][]byte{
		"nothing":          nil,
		"cut in a header":  whole[:50],
		"cut in the data":  whole[:headerSize+2],
		"without trailer":  whole[:headerSize+2+4],
		"another magic":    bytes.Replace(whole, []byte("070701"), []byte("070707"), 1),
		"letters as digit": bytes.Replace(whole, []byte("00000001"), []byte("0000000z"), 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := readAll(NewReader(bytes.NewReader(data)))
			require.ErrorIs(t, err, ErrFormat)
		})
	}
}

func FuzzReader(f *testing.F) {
	var buf bytes.Buffer
	w := NewWriter(&buf)
	_ = w.Write(Header{Name: "a", Mode: TypeRegular, Size: 3}, strings.NewReader("abc"))
	_ = w.Close()
	f.Add(buf.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		members, err := readAll(NewReader(bytes.NewReader(data)))
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("%v does not wrap ErrFormat", err)
			}
			return
		}
		for _, m := range members {
			if int64(len(m.Data)) != m.Size {
				t.Fatalf("%s: %d bytes of %d", m.Name, len(m.Data), m.Size)
			}
		}
	})
}
