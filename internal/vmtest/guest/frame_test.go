package guest

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type frame struct {
	Kind    Kind
	Payload string
}

func collect(r io.Reader) ([]frame, error) {
	in := NewReader(r)
	var out []frame
	for {
		k, p, err := in.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, frame{k, string(p)})
	}
}

func stream(t *testing.T, send func(*Writer) error) string {
	t.Helper()
	var buf bytes.Buffer
	w, err := NewWriter(&buf)
	require.NoError(t, err)
	require.NoError(t, send(w))
	return buf.String()
}

func TestFrameBytes(t *testing.T) {
	t.Parallel()
	got := stream(t, func(w *Writer) error {
		return errors.Join(
			w.Send(Ready, []byte("6.1.0")), w.Send(Output, []byte("PASS\n")),
			w.SendExit(ExitStatus{Code: 1, Milliseconds: 20}),
			w.SendFile("a", strings.NewReader("xy")), w.Send(Done, nil))
	})
	require.Equal(t, "\x00kernlb-vmtest\x00"+
		"R\x00\x00\x00\x056.1.0"+
		"O\x00\x00\x00\x05PASS\n"+
		"E\x00\x00\x00\x12"+`{"code":1,"ms":20}`+
		"F\x00\x00\x00\x04\x01axy"+
		"D\x00\x00\x00\x00", got)

	frames, err := collect(strings.NewReader("noise of the firmware\r\n\x00kern" + got))
	require.NoError(t, err)
	require.Equal(t, []frame{
		{Ready, "6.1.0"}, {Output, "PASS\n"}, {Exit, `{"code":1,"ms":20}`}, {File, "\x01axy"},
		{Done, ""},
	}, frames)
	status, err := ParseExit([]byte(frames[2].Payload))
	require.NoError(t, err)
	require.Equal(t, ExitStatus{Code: 1, Milliseconds: 20}, status)
}

func TestAFileTakesAsManyFramesAsItNeeds(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"empty": "", "small": "abc", "exactly one frame": strings.Repeat("x", MaxPayload-2),
		"several frames": strings.Repeat("0123456789", MaxPayload/4),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			frames, err := collect(strings.NewReader(stream(t, func(w *Writer) error {
				return w.SendFile("f", strings.NewReader(content))
			})))
			require.NoError(t, err)
			require.NotEmpty(t, frames)
			var got strings.Builder
			for _, f := range frames {
				file, data, err := SplitFile([]byte(f.Payload))
				require.NoError(t, err)
				require.Equal(t, "f", file)
				got.Write(data)
			}
			require.Equal(t, content, got.String())
		})
	}
}

func TestDamagedStreamsAreRefused(t *testing.T) {
	t.Parallel()
	for name, tail := range map[string]string{
		"an unknown kind": "Z\x00\x00\x00\x00",
		"a huge payload":  "O\xff\x00\x00\x00",
		"a cut header":    "O\x00",
		"a cut payload":   "O\x00\x00\x00\x05ab",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := collect(strings.NewReader(preamble + tail))
			require.ErrorIs(t, err, ErrFrame)
		})
	}
	_, err := ParseExit([]byte("{"))
	require.ErrorIs(t, err, ErrFrame)
	_, _, err = SplitFile([]byte{5, 'a'})
	require.ErrorIs(t, err, ErrFrame)
	_, _, err = SplitFile(nil)
	require.ErrorIs(t, err, ErrFrame)
}

func TestSendRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	w, err := NewWriter(io.Discard)
	require.NoError(t, err)
	require.ErrorContains(t, w.Send(Output, make([]byte, MaxPayload+1)), "more than")
	require.ErrorContains(t, w.SendFile(strings.Repeat("n", 256), strings.NewReader("")),
		"longer than")
}

func FuzzReader(f *testing.F) {
	f.Add(preamble + "R\x00\x00\x00\x056.1.0D\x00\x00\x00\x00")
	f.Add(preamble + "F\x00\x00\x00\x03\x01ab" + "E\x00\x00\x00\x02{}")
	f.Fuzz(func(t *testing.T, data string) {
		frames, err := collect(strings.NewReader(data))
		if err != nil && !errors.Is(err, ErrFrame) {
			t.Fatalf("%v does not wrap ErrFrame", err)
		}
		var buf bytes.Buffer
		w, _ := NewWriter(&buf)
		for _, fr := range frames {
			if fr.Kind == Exit {
				_, _ = ParseExit([]byte(fr.Payload))
			}
			_, _, _ = SplitFile([]byte(fr.Payload))
			if err := w.Send(fr.Kind, []byte(fr.Payload)); err != nil {
				t.Fatal(err)
			}
		}
		if len(frames) > 0 && !strings.Contains(data, buf.String()) {
			t.Fatalf("frames do not encode to what was read")
		}
	})
}
