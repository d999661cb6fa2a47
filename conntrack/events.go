package conntrack

import "errors"

// eventSource is where events come from. The tests put another one in the place of a socket.
type eventSource interface {
	// receive takes one datagram out of the queue. It does not wait: it returns errNoEvent if there
	// is none, and errEventsLost once after the kernel could not queue some. More may be missing
	// until it has returned errNoEvent.
	receive(p []byte) (int, error)
	close() error
}

var (
	errNoEvent    = errors.New("there is no event")
	errEventsLost = errors.New("events were lost")
)

// eventOptions say what an event socket receives.
type eventOptions struct {
	types     []EventType
	protocols []Protocol
	buffer    int // bytes
}
