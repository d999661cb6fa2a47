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

// ackSize is the share of the receive queue that one answer with a long text uses: an sk_buff with
// its data, as the kernel accounts it.
const ackSize = 2 << 10

// manySize limits the size of a datagram if many are received at once. Elements of sets, with names
// and user data, have less than 700 bytes; errors with text have little more than 100.
const manySize = 1 << 10

// Config configures a connection. A nil *Config is the zero Config.
type Config struct {
	// NetNS names the network namespace of the socket. A caller that changes namespaces itself must
	// have locked its goroutine to the thread.
	NetNS netns.Namespace
	// Logger gets a debug record for each request. Nil discards the records.
	Logger *slog.Logger
	// Limit is the maximum number of bytes in one send. It can only lower the limit of the socket;
	// zero leaves that limit alone.
	Limit int
	// Socket replaces the socket of the kernel; NetNS is then ignored. It is for tests.
	Socket Socket
	// Wrap, if not nil, replaces the socket by its result. It is for tests.
	Wrap func(Socket) Socket
}

// Conn is a connection to nfnetlink, or to one family of generic netlink, in one network namespace.
// Many goroutines may call its methods; the calls take turns.
type Conn struct {
	sock   Socket
	log    *slog.Logger
	limit  int           // the maximum number of bytes in one send
	queue  int           // the size of the receive queue
	family uint16        // of generic netlink; 0 for nfnetlink
	turn   chan struct{} // holds a token while no request uses the fields below
	closed atomic.Bool

	seq     uint32 // the next sequence number
	dumpSeq uint32 // the dump that is not over, 0 if none; the kernel may have more parts of it
	rx      []byte
	sizes   [receiveSize / manySize]int // of the datagrams in rx
	genID   Batch                       // the request for the generation
	part    Batch                       // the datagram of a Lookup
	loaded  []string                    // modules that the kernel was asked to load
}

// Socket is the kernel's side of a connection. Tests replace it by a fake.
type Socket interface {
	// Send sends one datagram. When Send returns, the kernel has processed the datagram.
	Send(p []byte) error
	// Receive removes at least one datagram from the receive queue, and at most len(sizes). Each
	// datagram is stored in a part of p with len(p)/len(sizes) bytes, and is cut off if it is
	// longer. Receive returns the number of datagrams and sets their sizes. The error is EAGAIN if
	// the queue is empty, and ENOBUFS if the kernel could not queue a datagram.
	Receive(p []byte, sizes []int) (int, error)
	// Limits returns the sizes in bytes of the largest datagram and of the receive queue.
	Limits() (send, queue int)
	// LoadModule asks the kernel to load a module. Nothing happens if the kernel does not have the
	// module or if this process may not load it.
	LoadModule(name string)
	// Close closes the socket.
	Close() error
}

// The errors of a socket that concern its receive queue.
const (
	errEmpty   = syscall.EAGAIN  // the queue is empty
	errOverrun = syscall.ENOBUFS // the queue had no room for an answer
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

// Close closes the connection as soon as the current system call returns. A request in progress
// ends with [ErrClosed], unless that was its last system call. A nil Conn is already closed.
func (c *Conn) Close() error {
	if c == nil || c.closed.Swap(true) {
		return nil
	}
	<-c.turn
	defer c.end()
	return c.sock.Close()
}

// MaxBatch returns the size in bytes ([Batch.Size]) of the largest batch, and so of the largest
// transaction, that one Commit can send. With CAP_NET_ADMIN in the initial user namespace it is 2
// GiB. Without this capability, as in an unprivileged user namespace, SO_SNDBUFFORCE fails and the
// limit is twice net.core.wmem_max, less 32 bytes. By default, that is 425,952 bytes in Linux 5.10
// to 6.12, and was 8,388,576 on a 6.18. Nothing inside such a namespace can raise the limit. Larger
// changes must be split into several transactions.
func (c *Conn) MaxBatch() int { return min(c.limit, maxBuffer) }

// LoadModule asks the kernel to load a module, at most once for each module. Nothing happens if the
// kernel does not have the module or if this process may not load it.
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
