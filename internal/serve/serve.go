// Package serve has the limits of every HTTP server of this module. Slow, idle or many clients
// cannot hold connections for long, and cannot keep the server from other clients.
package serve

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of a connection. An answer may take ten seconds, because [dataplane/page] may need this
// time to read a table.
const (
	readHeader = 5 * time.Second
	read       = 10 * time.Second
	write      = time.Minute
	idle       = time.Minute
	headerSize = 16 << 10
)

// Server returns a server for a handler, with limits on time and on the size of headers.
func Server(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: readHeader, ReadTimeout: read,
		WriteTimeout: write, IdleTimeout: idle, MaxHeaderBytes: headerSize}
}

// Limit bounds the number of open connections. Several listeners may share a Limit. [NewLimit]
// returns a Limit.
type Limit struct {
	max int

	mu   sync.Mutex
	open list.List // of *conn, the oldest first
}

// NewLimit returns a limit of this number of connections, at least one.
func NewLimit(connections int) *Limit { return &Limit{max: max(1, connections)} }

// Listener returns a listener with the limit. If too many connections are open, it closes the
// oldest connection of the limit, which is probably idle or slow.
func (l *Limit) Listener(on net.Listener) net.Listener { return &listener{on, l} }

type listener struct {
	net.Listener
	limit *Limit
}

// Accept waits for a connection, and makes room for it.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.limit.add(c), nil
}

func (l *Limit) add(c net.Conn) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open.Len() >= l.max {
		oldest := l.open.Remove(l.open.Front()).(*conn)

		// the server also calls the connection's Close, which then does nothing
		_ = oldest.Conn.Close()
	}

	n := &conn{Conn: c, limit: l}
	n.place = l.open.PushBack(n)
	return n
}

type conn struct {
	net.Conn
	limit *Limit
	place *list.Element
}

// Close closes the connection, which no longer counts.
func (c *conn) Close() error {
	c.limit.mu.Lock()
	c.limit.open.Remove(c.place)
	c.limit.mu.Unlock()
	return c.Conn.Close()
}
