// Package servetest tests a server with slow, idle and many clients.
package servetest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/serve"
)

// Patience is the longest time that a hostile client may keep a connection.
const Patience = 2 * time.Minute

// Listener is a listener in memory, whose connections take no descriptors and whose deadlines
// follow the clock of a [synctest] bubble.
type Listener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

// Listen returns a listener. Call it in the bubble.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept waits for a client.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr returns a TCP address on loopback.
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// Dial connects a client.
func (l *Listener) Dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

// clients are hostile: each sends something, and then does nothing more.
var clients = map[string]func(net.Conn, string){
	"says nothing": func(net.Conn, string) {},
	"sends a header slowly": func(c net.Conn, path string) {
		send(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 100), 1)
	},
	"sends a header without end": func(c net.Conn, path string) {
		send(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 1<<20), 4096)
	},
	"sends a body slowly": func(c net.Conn, path string) {
		send(c, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n", 999)
		send(c, strings.Repeat("x", 100), 1)
	},
	"asks, and then is idle": func(c net.Conn, path string) {
		send(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n", 999)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
		}
	},
	"asks, and reads no answer": func(c net.Conn, path string) {
		send(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n", 999)
	},
	"speaks another protocol": func(c net.Conn, _ string) {
		send(c, "\x16\x03\x01\x00\xff\x00", 9)
	},
}

// send writes some bytes every two seconds, until the server closes the connection.
func send(c net.Conn, text string, at int) {
	for piece := range slices.Chunk([]byte(text), at) {
		if _, err := c.Write(piece); err != nil {
			return
		}
		time.Sleep(2 * time.Second)
	}
}

// Hostile requires that a server ends each hostile client within [Patience], that it serves a
// friendly client during that time, and that stop leaves no goroutine. limit is the greatest number
// of open connections; 0 means no limit. start begins to serve in the background.
func Hostile(t *testing.T, path string, limit int, start func(net.Listener) (stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var acting sync.WaitGroup
		defer acting.Wait() // after all connections were closed
		l := Listen()
		stop := start(l)
		defer stop() // a goroutine that stays makes the bubble fail
		conns := map[string]net.Conn{}
		for name, act := range clients {
			c := l.Dial()
			defer c.Close()
			conns[name] = c
			acting.Go(func() { act(c, path) })
		}

		for range Patience / (10 * time.Second) {
			requireServed(t, l, path)
			time.Sleep(10 * time.Second)
		}

		for name, c := range conns {
			require.False(t, isOpen(c), "a client that %s is still connected", name)
		}
		if limit == 0 {
			return
		}
		var many []net.Conn
		for range 3 * limit {
			many = append(many, l.Dial())
		}
		requireServed(t, l, path)
		many = slices.DeleteFunc(many, func(c net.Conn) bool { return !isOpen(c) })
		require.LessOrEqual(t, len(many), limit)
		for _, c := range many {
			c.Close()
		}
	})
}

// HostileToHandler is Hostile against [serve.Server] with a handler.
func HostileToHandler(t *testing.T, path string, h http.Handler) {
	t.Helper()
	Hostile(t, path, 0, func(l net.Listener) func() {
		s := serve.Server(h)
		go func() { _ = s.Serve(l) }() // ends with Close
		return func() { _ = s.Close() }
	})
}

// isOpen reports whether the server has not closed a connection yet.
func isOpen(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond)) // a read shows it
	_, err := io.Copy(io.Discard, c)
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// requireServed makes a request like a friendly client, and requires an answer.
func requireServed(t *testing.T, l *Listener, path string) {
	t.Helper()
	c := l.Dial()
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Second)))
	_, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n"+
		"Connection: close\r\n\r\n")
	require.NoError(t, err)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, r.Body)
	require.NoError(t, err)
	require.Less(t, r.StatusCode, 500)
}
