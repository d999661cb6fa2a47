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

// Message is one message from init to the host. One of the fields is set. A run sends one Ready,
// then for each program any number of Output and one Exit, and then Done. Fatal may come instead of
// any of these, and is then the last one.
type Message struct {
	// Ready says that init runs. It is the kernel's release, as in uname -r.
	Ready string
	// Output is a piece of what the running program printed, cut anywhere.
	Output []byte
	// Exit says that the program ended.
	Exit *Exit
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

// Reader receives messages.
type Reader struct{ from *gob.Decoder }

// NewReader returns a Reader on r.
func NewReader(r io.Reader) *Reader { return &Reader{gob.NewDecoder(bufio.NewReader(r))} }

// Next returns the next message, or io.EOF if the stream has ended between two messages. Other
// errors wrap [ErrStream].
func (r *Reader) Next() (Message, error) {
	var m Message
	err := r.from.Decode(&m)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: %w", ErrStream, err)
	}
	return m, err
}
