package guest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrFrame is wrapped by errors about bytes that are not frames.
var ErrFrame = errors.New("the guest's stream is damaged")

// preamble starts the stream. What comes before it, say from firmware, is not
// looked at.
const preamble = "\x00kernlb-vmtest\x00"

// MaxPayload is the most bytes a frame carries.
const MaxPayload = 64 << 10

const (
	headerSize  = 5 // kind, then the payload's length in big-endian order
	maxFileName = 255
)

// Kind says what a frame's payload is.
type Kind byte

// The frames of a run, in the order in which they come: one Ready, then for each
// program any Output and one Exit, then Files, then Done. Fatal may take the
// place of any of them and is the last one.
const (
	// Ready: init runs. The payload is the kernel's release, as in uname -r.
	Ready Kind = 'R'
	// Output is a piece of the running program's output, cut anywhere.
	Output Kind = 'O'
	// Exit: the program ended. The payload is an [ExitStatus] in JSON.
	Exit Kind = 'E'
	// File is a piece of a result file: see [SplitFile].
	File Kind = 'F'
	// Done: all programs have run, the guest powers off.
	Done Kind = 'D'
	// Fatal: init cannot go on. The payload says why.
	Fatal Kind = 'X'
)

func (k Kind) known() bool { return bytes.IndexByte([]byte("ROEFDX"), byte(k)) >= 0 }

// ExitStatus is how one program ended.
type ExitStatus struct {
	// Code is the exit code, or 128 plus the number of the signal that ended the
	// program, as a shell reports it.
	Code int `json:"code"`
	// Milliseconds is how long it ran.
	Milliseconds int64 `json:"ms"`
}

// Writer sends frames. It is not safe for concurrent use.
type Writer struct{ w io.Writer }

// NewWriter starts a stream on w.
func NewWriter(w io.Writer) (*Writer, error) {
	if _, err := io.WriteString(w, preamble); err != nil {
		return nil, fmt.Errorf("start the frame stream: %w", err)
	}
	return &Writer{w}, nil
}

// Send writes one frame in one Write.
func (w *Writer) Send(k Kind, payload []byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("send frame %c: %d bytes are more than %d", k, len(payload), MaxPayload)
	}
	frame := make([]byte, headerSize, headerSize+len(payload))
	frame[0] = byte(k)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	if _, err := w.w.Write(append(frame, payload...)); err != nil {
		return fmt.Errorf("send frame %c: %w", k, err)
	}
	return nil
}

// SendExit sends an [Exit] frame.
func (w *Writer) SendExit(s ExitStatus) error {
	payload, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode exit status: %w", err)
	}
	return w.Send(Exit, payload)
}

// ParseExit is the inverse of [Writer.SendExit]'s payload.
func ParseExit(payload []byte) (ExitStatus, error) {
	var s ExitStatus
	if err := json.Unmarshal(payload, &s); err != nil {
		return ExitStatus{}, fmt.Errorf("%w: exit status %q: %w", ErrFrame, payload, err)
	}
	return s, nil
}

// SendFile sends the file's content in as many [File] frames as it takes, at
// least one. The name is at most 255 bytes.
func (w *Writer) SendFile(name string, r io.Reader) error {
	if len(name) > maxFileName {
		return fmt.Errorf("send file %s: its name is longer than %d bytes", name, maxFileName)
	}
	head := append([]byte{byte(len(name))}, name...)
	buf := make([]byte, MaxPayload)
	copy(buf, head)
	for first := true; ; first = false {
		n, err := io.ReadFull(r, buf[len(head):])
		if n > 0 || first {
			if err := w.Send(File, buf[:len(head)+n]); err != nil {
				return err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("send file %s: %w", name, err)
		}
	}
}

// SplitFile takes the payload of a [File] frame apart: a length byte, the file's
// name, and data to append to it.
func SplitFile(payload []byte) (name string, data []byte, err error) {
	if len(payload) < 1 || len(payload) < 1+int(payload[0]) {
		return "", nil, fmt.Errorf("%w: a file frame of %d bytes", ErrFrame, len(payload))
	}
	rest := payload[1:]
	return string(rest[:payload[0]]), rest[payload[0]:], nil
}

// Reader receives frames.
type Reader struct {
	r       *bufio.Reader
	started bool
}

// NewReader returns a Reader on r.
func NewReader(r io.Reader) *Reader { return &Reader{r: bufio.NewReader(r)} }

// Next returns the next frame; io.EOF where the stream ends between frames, also
// if it never started. The payload is the caller's to keep.
func (r *Reader) Next() (Kind, []byte, error) {
	if !r.started {
		if err := r.skipTo(preamble); err != nil {
			return 0, nil, err
		}
		r.started = true
	}
	var head [headerSize]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = fmt.Errorf("%w: cut short in a header", ErrFrame)
		}
		return 0, nil, err
	}
	kind, size := Kind(head[0]), binary.BigEndian.Uint32(head[1:])
	if !kind.known() || size > MaxPayload {
		return 0, nil, fmt.Errorf("%w: header % x", ErrFrame, head)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(r.r, payload); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			err = fmt.Errorf("%w: cut short in frame %c", ErrFrame, kind)
		}
		return 0, nil, err
	}
	return kind, payload, nil
}

// skipTo discards everything up to and including the text.
func (r *Reader) skipTo(text string) error {
	var window []byte
	for {
		b, err := r.r.ReadByte()
		if err != nil {
			return err
		}
		window = append(window, b)
		if len(window) > len(text) {
			window = window[1:]
		}
		if string(window) == text {
			return nil
		}
	}
}
