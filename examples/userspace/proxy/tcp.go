package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// accept accepts connections until the socket is closed. Where there are too many, it waits, and
// clients wait in the queue of the listener.
func (s *socket) accept() {
	defer s.b.accepting.Add(-1)
	for {
		client, err := s.tcp.AcceptTCP()
		if err != nil {
			if s.ended(err) {
				return
			}
			continue
		}
		select {
		case s.b.slots <- struct{}{}:
		default:
			s.b.full.warn(s.b.cfg.Logger, "as many connections as may be", "limit",
				s.b.cfg.MaxConnections)
			select {
			case s.b.slots <- struct{}{}:
			case <-s.b.ctx.Done():
				reset(client)
				return
			}
		}
		s.b.work.Go(func() {
			defer func() { <-s.b.slots }()
			s.b.forward(client, s.dst)
		})
	}
}

// forward forwards a connection to an endpoint until both ends have closed it. The client, who
// asked for dst, is reset if there is none.
func (b *Backend) forward(client *net.TCPConn, dst netip.AddrPort) {
	src := unmapped(client.RemoteAddr().(*net.TCPAddr).AddrPort())
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	c := &conn{protocol: servicemodel.TCP, src: src, dst: dst, cancel: cancel,
		ended: make(chan struct{})}
	defer close(c.ended)
	defer func() { b.leave(c, false) }()
	server, err := b.connect(ctx, c)
	if err != nil {
		reset(client)
		if !errors.Is(err, errRefused) && ctx.Err() == nil {
			b.count(func(s *Stats) { s.Failed++ })
			b.refused.warn(b.cfg.Logger, "no endpoint accepts a connection", "service",
				c.service.String(), "client", src, "error", err)
		}
		return
	}
	// Whoever cancels, a cut or Close, makes both ends fail at once.
	stop := context.AfterFunc(ctx, func() { reset(client); reset(server) })
	if err = b.introduce(c, client, server); err == nil {
		err = relay(client, server, b.cfg.IdleTimeout)
	}
	if err != nil || !stop() {
		reset(client)
		reset(server)
		return
	}
	_ = client.Close() // both directions have ended
	_ = server.Close()
}

// connect connects to an endpoint. It asks another one where one does not accept.
func (b *Backend) connect(ctx context.Context, c *conn) (*net.TCPConn, error) {
	var tried []netip.AddrPort
	for {
		endpoint, err := b.choose(c, tried)
		if err != nil {
			return nil, err
		}
		server, err := b.dial(ctx, endpoint)
		if err == nil {
			return server, nil
		}
		b.leave(c, true)
		tried = append(tried, endpoint)
		if ctx.Err() != nil || len(tried) == b.cfg.Attempts {
			return nil, err
		}
		b.count(func(s *Stats) { s.Retried++ })
	}
}

// dial connects to an endpoint within the time that it has.
func (b *Backend) dial(ctx context.Context, endpoint netip.AddrPort) (c *net.TCPConn, err error) {
	at, ok := b.cfg.Map.At(endpoint)
	if !ok {
		return nil, errUnmapped
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.ConnectTimeout)
	defer cancel()
	err = b.cfg.Within(func() (err error) {
		c, err = new(net.Dialer).DialTCP(ctx, "tcp", netip.AddrPort{}, at)
		return err
	})
	return c, err
}

var errUnmapped = errors.New("its endpoint is mapped to none")

// introduce tells the endpoint who the client is, if it is to know. Where the address that the
// client asked for is of the other family, it is the one that was mapped to.
func (b *Backend) introduce(c *conn, client, server *net.TCPConn) error {
	h, dst := b.cfg.Header(c.service), c.dst
	if h == NoHeader {
		return nil
	}
	if dst.Addr().Is4() != c.src.Addr().Is4() {
		dst = unmapped(client.LocalAddr().(*net.TCPAddr).AddrPort())
	}
	_, err := server.Write(h.encode(c.src, dst))
	return err
}

// relay copies in both directions until both have ended. An end of one direction is passed on, and
// the other goes on.
func relay(client, server *net.TCPConn, idle time.Duration) error {
	var moved atomic.Int64
	copyTo := func(dst, src *net.TCPConn) error {
		err := pipe(dst, src, idle, &moved)
		if err != nil {
			reset(client) // which ends the other direction, too
			reset(server)
		}
		return err
	}
	answered := make(chan error, 1)
	go func() { answered <- copyTo(client, server) }()
	return errors.Join(copyTo(server, client), <-answered)
}

var errIdle = errors.New("nothing was sent for too long")

// pipe copies from src to dst until src ends. It looks from time to time whether anything moved in
// either direction; the other one may be in the middle of a copy, so that it takes two looks to
// know that nothing did. On Linux, io.Copy moves bytes without copying them (splice), and the
// deadline ends it when there is nothing to read, so that no byte is lost.
func pipe(dst, src *net.TCPConn, idle time.Duration, moved *atomic.Int64) error {
	last, before := moved.Load(), int64(-1)
	for {
		if err := src.SetReadDeadline(time.Now().Add((idle + 1) / 2)); err != nil {
			return err
		}
		n, err := io.Copy(dst, src)
		now := moved.Add(n)
		switch {
		case err == nil:
			return dst.CloseWrite()
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case n == 0 && now == before:
			return errIdle
		}
		last, before = now, last
	}
}

// reset closes a connection so that its peer sees a failure rather than an end.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // closed means that it was reset before
	_ = c.Close()
}

// unmapped returns an address as the model has it: an IPv4 address is not IPv6.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
