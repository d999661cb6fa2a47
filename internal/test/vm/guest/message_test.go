package guest

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// receive reads messages until the stream ends.
func receive(r io.Reader) ([]Message, error) {
	in := NewReader(r)
	var out []Message
	for {
		m, err := in.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
}

func TestMessagesArriveAsTheyWereSent(t *testing.T) {
	t.Parallel()
	messages := []Message{
		{Ready: "6.1.0"}, {Output: []byte("PASS\n")},
		{Exit: &Exit{Code: 1, Duration: 20 * time.Millisecond}}, {Exit: &Exit{}},
		{Fatal: "no /proc"}, {Done: true},
	}
	var stream bytes.Buffer
	w := NewWriter(&stream)
	for _, m := range messages {
		require.NoError(t, w.Send(m))
	}
	got, err := receive(&stream)
	require.NoError(t, err)
	require.Equal(t, messages, got)
}

func TestADamagedStreamIsAnError(t *testing.T) {
	t.Parallel()
	var stream bytes.Buffer
	require.NoError(t, NewWriter(&stream).Send(Message{Ready: "6.1.0"}))
	whole := stream.Bytes()
	_, err := receive(bytes.NewReader(whole[:len(whole)-1]))
	require.ErrorIs(t, err, ErrStream, "cut short")
	_, err = receive(strings.NewReader("noise that is no message"))
	require.ErrorIs(t, err, ErrStream)
	got, err := receive(strings.NewReader(""))
	require.NoError(t, err, "the guest said nothing")
	require.Empty(t, got)
}

func FuzzReader(f *testing.F) {
	var stream bytes.Buffer
	w := NewWriter(&stream)
	_ = errors.Join(w.Send(Message{Ready: "6.1"}), w.Send(Message{Exit: &Exit{Code: 2}}))
	f.Add(stream.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := receive(bytes.NewReader(data)); err != nil && !errors.Is(err, ErrStream) {
			t.Fatalf("%v does not wrap ErrStream", err)
		}
	})
}
