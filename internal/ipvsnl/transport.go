package ipvsnl

import "log/slog"

// Config says where and how to open a client. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of a network namespace (an open /proc/…/ns/net or a bind mount of
	// one), used only during Dial. 0 means the network namespace of the calling thread: a caller
	// that changes namespaces itself must have locked its goroutine to the thread.
	NetNS int
	// Logger gets a debug record for each request. Nil means silence.
	Logger *slog.Logger
}

// Transport carries requests to a kernel and answers back: a generic netlink socket, or [Fake].
//
// Everything in generic netlink happens inside the system call that asks for it: when sendmsg
// returns, the kernel has worked on all messages of the datagram, in order, and what it has to say
// is in the receive queue; the next part of a dump is made by the read of the part before. So a
// transport never waits for the kernel, and an empty receive queue means that there are no more
// answers.
type Transport interface {
	// RoundTrip sends a datagram of whole netlink messages and gives each datagram of the answer to
	// take, until that reports that it has all it wants. It returns ErrAnswersLost if there is no
	// more to take before that, or if the kernel says that it could not queue an answer. If take
	// returns an error, the rest of the answer is thrown away and the error returned. The bytes
	// given to take are valid until it returns.
	RoundTrip(request []byte, take func(datagram []byte) (done bool, err error)) error
	// Limits returns how many bytes a request may have, and to how many messages in one request the
	// receive queue can hold the answers, even if all are errors.
	Limits() (bytes, answers int)
	// LoadModule makes the kernel load a module, if it has it and this process may.
	LoadModule(name string)
	// Close closes the transport.
	Close() error
}
