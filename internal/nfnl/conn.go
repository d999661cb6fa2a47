package nfnl

import (
	"context"
	"log/slog"
)

// Config says where and how to open a connection. A nil *Config is the zero Config.
type Config struct {
	// NetNS is a file descriptor of a network namespace (an open /proc/…/ns/net or a bind mount of one),
	// used only during Dial. 0 means the network namespace of the calling thread: a caller that changes
	// namespaces itself must have locked its goroutine to the thread.
	NetNS int
	// Logger gets a debug record for each request. Nil means silence.
	Logger *slog.Logger
}

// Conn is a connection to nfnetlink in one network namespace. Its methods may be called by many
// goroutines; they take turns.
type Conn struct{ _ struct{} }

// Dial opens a NETLINK_NETFILTER socket in the namespace of cfg. It needs CAP_SYS_ADMIN to enter
// another network namespace; what is sent later needs CAP_NET_ADMIN in the user namespace that owns it.
func Dial(cfg *Config) (*Conn, error) { return nil, ErrNotSupported }

// Close closes the connection. A request in progress ends with [ErrClosed] at its next system call.
func (c *Conn) Close() error { return nil }

// MaxBatch returns the size in bytes ([Batch.Size]) of the largest batch that one Commit can send. It is
// practically unlimited (2 GiB) with CAP_NET_ADMIN in the initial user namespace, and 2 * net.core.wmem_max
// - 32 without: 416 KiB as most kernels come, 8 MiB in newer ones.
func (c *Conn) MaxBatch() int { return 0 }

// Commit sends b as one transaction: all of it takes effect, or none. An empty batch is not sent. If
// genID is not 0, the kernel refuses the transaction with [ErrGenerationChanged] unless genID is still
// the generation of the ruleset. The kernel judges every message also after one has failed: the error
// is an [OpError] or, for several, [OpErrors].
func (c *Conn) Commit(ctx context.Context, b *Batch, genID uint32) error { return ErrNotSupported }

// SendAll sends the messages of b as independent requests: one that fails does not stop the others. It
// returns how many the kernel has worked on, and the failures as an [OpError] or [OpErrors], whose Index
// says which message each belongs to. A dump or a request with a reply does not belong here.
func (c *Conn) SendAll(ctx context.Context, b *Batch) (done int, err error) {
	return 0, ErrNotSupported
}

// Query sends the one message of req and returns the replies, which may be none. They are copies.
func (c *Conn) Query(ctx context.Context, req *Batch) ([]Message, error) {
	return nil, ErrNotSupported
}

// Dump sends the one message of req as a dump and calls fn for every message of the answer. It returns
// [ErrDumpInterrupted] if what is being dumped changed meanwhile: what fn has seen is then worth
// nothing. If fn returns an error, that is returned and the rest of the dump is thrown away. fn must not
// use the connection.
func (c *Conn) Dump(ctx context.Context, req *Batch, fn func(Message) error) error {
	return ErrNotSupported
}

// DumpRetry is Dump, repeated a bounded number of times while it is interrupted. reset is called
// before each attempt and must forget what fn has seen.
func (c *Conn) DumpRetry(ctx context.Context, req *Batch, reset func(), fn func(Message) error) error {
	return ErrNotSupported
}

// GenInfo describes the present generation of the nf_tables ruleset in a network namespace.
type GenInfo struct {
	ID       uint32 // never 0
	ProcPID  uint32 // the process that asks, as seen from the initial pid namespace, not the one that committed
	ProcName string // its name
}

// GenID asks for the generation of the nf_tables ruleset (NFT_MSG_GETGEN).
func (c *Conn) GenID(ctx context.Context) (GenInfo, error) { return GenInfo{}, ErrNotSupported }
