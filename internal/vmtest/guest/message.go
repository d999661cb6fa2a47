package guest

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrStream is wrapped by errors about bytes that are not messages.
var ErrStream = errors.New("the guest's stream is damaged")

// MaxPiece is the most bytes of output or of a file in one message.
const MaxPiece = 64 << 10

// Message is what init tells the host. One of the fields is set. A run sends one Ready, then
// for each program any number of Output and one Exit, then Files, then Done. Fatal may come
// instead of any of them and is the last one.
type Message struct {
	// Ready says that init runs. It is the kernel's release, as in uname -r.
	Ready string
	// Output is a piece of what the running program printed, cut anywhere.
	Output []byte
	// Exit says that the program ended.
	Exit *Exit
	// File is a piece of a result file.
	File *File
	// Done says that all programs have run, and that the guest powers off.
	Done bool
	// Fatal says why init cannot go on.
	Fatal string
}

// Exit is how one program ended.
type Exit struct {
	// Code is the exit code, or 128 plus the number of the signal that ended the program, as a
	// shell reports it.
	Code int
	// Duration is how long the program ran, by the guest's clock.
	Duration time.Duration
}

// File is a piece of a result file. The pieces of a file follow one another.
type File struct {
	// Name has no directory.
	Name string
	// Data is to be appended to the file.
	Data []byte
}

// Writer sends messages. It is not safe for concurrent use.
type Writer struct{ to *gob.Encoder }

// NewWriter starts a stream on w.
func NewWriter(w io.Writer) *Writer { return &Writer{gob.NewEncoder(w)} }

// Send writes one message.
func (w *Writer) Send(m Message) error {
	if err := w.to.Encode(m); err != nil {
		return fmt.Errorf("send a message to the host: %w", err)
	}
	return nil
}

// SendFile sends the content of r as a file of that name, in at least one message.
func (w *Writer) SendFile(name string, r io.Reader) error {
	buf := make([]byte, MaxPiece)
	for first := true; ; first = false {
		n, err := io.ReadFull(r, buf)
		if n > 0 || first {
			if err := w.Send(Message{File: &File{name, buf[:n]}}); err != nil {
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

// Reader receives messages.
type Reader struct{ from *gob.Decoder }

// NewReader returns a Reader on r.
func NewReader(r io.Reader) *Reader { return &Reader{gob.NewDecoder(bufio.NewReader(r))} }

// Next returns the next message; io.EOF where the stream ends between two. Other errors wrap
// [ErrStream].
func (r *Reader) Next() (Message, error) {
	var m Message
	err := r.from.Decode(&m)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: %w", ErrStream, err)
	}
	return m, err
}
