package rawnl

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/kernlb/kernlb/dataplane/netns"
)

// receiveSize is the size of the receive buffer. The kernel makes the parts of a dump as large as
// the largest read so far, up to 32 KiB less its own overhead (netlink_recvmsg and netlink_dump in
// net/netlink/af_netlink.c). For each part it walks a set from its beginning, so large parts save
// time.
const receiveSize = 64 << 10

// ackSize is the share of the receive queue that one answer with a long text uses: an sk_buff and
// its data, as the kernel accounts them.
const ackSize = 2 << 10

// manySize is the largest datagram that a receive of many can hold. Elements of sets, with names
// and user data, have less than 700 bytes; errors with text have little more than 100.
const manySize = 1 << 10

// Config says where and how to open a connection. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace of the socket. A caller that changes namespaces itself must
	// have locked its goroutine to the thread.
	NetNS netns.Namespace
	// Logger gets a debug record for each request. Nil means silence.
	Logger *slog.Logger
	// Limit is the greatest number of bytes in one send. It only lowers the limit of the socket;
	// zero leaves that limit alone.
	Limit int
	// Socket replaces the socket of the kernel; NetNS is then ignored. It is for tests.
	Socket Socket
	// Wrap, if not nil, gets the socket and returns the one to use. It is for tests.
	Wrap func(Socket) Socket
}

// Conn is a connection to nfnetlink, or to one family of generic netlink, in one network namespace.
// Many goroutines may call its methods; the calls take turns.
type Conn struct {
	sock   Socket
	log    *slog.Logger
	limit  int           // how many bytes can be sent at once
	queue  int           // the size of the receive queue
	family uint16        // of generic netlink; 0 for nfnetlink
	turn   chan struct{} // holds a token while no request uses the fields below
	closed atomic.Bool

	seq     uint32 // the next sequence number
	dumpSeq uint32 // the dump that is not over, 0 if none; the kernel may have more of it
	rx      []byte
	sizes   [receiveSize / manySize]int // of the datagrams in rx
	genID   Batch                       // the request for the generation
	part    Batch                       // the datagram of a Lookup
	loaded  []string                    // modules that the kernel was asked to load
}

// Socket is the kernel's side of a connection. Tests put a fake one in its place.
type Socket interface {
	// Send sends one datagram. The kernel has worked on it when Send returns.
	Send(p []byte) error
	// Receive removes at least one datagram from the receive queue, and at most len(sizes). Each
	// goes into a part of p with len(p)/len(sizes) bytes, and is cut off if it is longer. Receive
	// returns their number and sets as many sizes. The error is EAGAIN if the queue is empty, and
	// ENOBUFS if the kernel could not queue a datagram.
	Receive(p []byte, sizes []int) (int, error)
	// Limits returns the sizes in bytes of the largest datagram and of the receive queue.
	Limits() (send, queue int)
	// LoadModule asks the kernel to load a module. Nothing happens if the kernel does not have the
	// module or this process may not load it.
	LoadModule(name string)
	// Close closes the socket.
	Close() error
}

// The errors of a socket about its receive queue.
const (
	errEmpty   = syscall.EAGAIN  // nothing is in it
	errOverrun = syscall.ENOBUFS // an answer had no room
)

// Dial opens a NETLINK_NETFILTER socket in the namespace of cfg. To enter another network
// namespace, Dial needs CAP_SYS_ADMIN. Later requests need CAP_NET_ADMIN in the user namespace that
// owns the network namespace.
func Dial(cfg *Config) (*Conn, error) {
	c, err := dial(protocolNetfilter, cfg)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter connection: %w", err)
	}
	return c, nil
}

// dial opens a connection of a netlink protocol.
func dial(protocol int, cfg *Config) (*Conn, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	sock := cfg.Socket
	if sock == nil {
		var err error
		if sock, err = openSocket(protocol, cfg.NetNS); err != nil {
			return nil, err
		}
	}

	if cfg.Wrap != nil {
		sock = cfg.Wrap(sock)
	}
	c := &Conn{sock: sock, log: cfg.Logger, turn: make(chan struct{}, 1), seq: 1,
		rx: make([]byte, receiveSize)}
	c.limit, c.queue = sock.Limits()
	if cfg.Limit > 0 {
		c.limit = min(c.limit, cfg.Limit)
	}
	c.genID.Message(SubsysNFTables, msgGetGen, 0, 0, 0,
		Object{Verb: "get", Kind: "generation of the ruleset"})
	c.turn <- struct{}{}
	return c, nil
}

// Close closes the connection as soon as the system call in progress returns. A request in progress
// ends with [ErrClosed], unless that was its last system call. A nil Conn counts as closed.
func (c *Conn) Close() error {
	if c == nil || c.closed.Swap(true) {
		return nil
	}
	<-c.turn
	defer c.end()
	return c.sock.Close()
}

// MaxBatch returns the size in bytes ([Batch.Size]) of the largest batch that one Commit can send:
// the largest transaction. With CAP_NET_ADMIN in the initial user namespace it is 2 GiB. Without
// it, as in an unprivileged user namespace, SO_SNDBUFFORCE fails and the limit is twice
// net.core.wmem_max, less 32 bytes. By default, that is 425,952 bytes in Linux 5.10 to 6.12, and
// was 8,388,576 on a 6.18. Nothing inside such a namespace can raise the limit. Larger changes must
// be split into several transactions.
func (c *Conn) MaxBatch() int { return min(c.limit, maxBuffer) }

// LoadModule asks the kernel to load a module, at most once for each module. Nothing happens if the
// kernel does not have the module or this process may not load it.
func (c *Conn) LoadModule(ctx context.Context, name string) error {
	if err := c.begin(ctx); err != nil {
		return fmt.Errorf("load the module %s: %w", name, err)
	}
	defer c.end()
	if !slices.Contains(c.loaded, name) {
		c.sock.LoadModule(name)
		c.loaded = append(c.loaded, name)
	}

	return nil
}
