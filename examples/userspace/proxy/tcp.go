package proxy

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// accept accepts connections until the socket is closed. If there are too many, it waits, and
// clients wait in the queue of the listener.
func (s *socket) accept() {
	for {
		client, err := s.tcp.AcceptTCP()
		if err != nil {
			if s.ended(err) {
				return
			}
			continue
		}

		if len(s.b.slots) == cap(s.b.slots) {
			s.b.full.warn(s.b.cfg.Logger, "as many connections as may be", "limit",
				s.b.cfg.MaxConnections)
		}

		select {
		case s.b.slots <- struct{}{}:
		case <-s.b.ctx.Done():
			reset(client)
			return
		}

		s.b.work.Go(func() {
			defer func() { <-s.b.slots }()
			s.b.forward(client, s.dst)
		})
	}
}

// forward forwards a connection to an endpoint until both ends have closed it. dst is the address
// that the client used. If there is no endpoint, the client is reset.
func (b *Backend) forward(client *net.TCPConn, dst netip.AddrPort) {
	src := unmapped(client.RemoteAddr().(*net.TCPAddr).AddrPort())
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	c := &conn{protocol: servicemodel.TCP, src: src, dst: dst, cancel: cancel,
		ended: make(chan struct{})}
	defer close(c.ended)
	defer b.leave(c, false)
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

	// A cancelled context, by a cut or by Close, makes both ends fail at once.
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

// connect connects to an endpoint. If an endpoint does not accept, it tries another endpoint.
func (b *Backend) connect(ctx context.Context, c *conn) (*net.TCPConn, error) {
	var tried []netip.AddrPort
	for {
		endpoint, err := b.choose(c, tried)
		if err != nil {
			return nil, err
		}
		server, err := b.dial(ctx, servicemodel.TCP, endpoint)
		if err == nil {
			return server.(*net.TCPConn), nil
		}
		b.leave(c, true)
		tried = append(tried, endpoint)
		if ctx.Err() != nil || len(tried) == attempts {
			return nil, err
		}
		b.count(func(s *Stats) { s.Retried++ })
	}
}

// dial connects to an endpoint within the connect timeout.
func (b *Backend) dial(
	ctx context.Context, p servicemodel.Protocol, endpoint netip.AddrPort,
) (c net.Conn, err error) {
	at, ok := b.cfg.Map.At(endpoint)
	if !ok {
		return nil, errUnmapped
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.ConnectTimeout)
	defer cancel()
	err = b.cfg.Within(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, strings.ToLower(p.String()), at.String())
		return err
	})
	return c, err
}

var errUnmapped = errors.New("its endpoint is mapped to none")

// introduce sends the endpoint the header that names the client, if the service has a header. If
// the client's destination is of the other family, the header contains the address to which it was
// mapped.
func (b *Backend) introduce(c *conn, client, server *net.TCPConn) error {
	if !b.cfg.Header(c.service.Name) {
		return nil
	}
	dst := c.dst
	if dst.Addr().Is4() != c.src.Addr().Is4() {
		dst = unmapped(client.LocalAddr().(*net.TCPAddr).AddrPort())
	}
	_, err := server.Write(header(c.src, dst))
	return err
}

// relay copies in both directions until both have ended. If one direction ends, relay passes the
// end on, and the other direction continues. An error of one direction resets both connections, and
// so does the idle time without progress in either direction.
func relay(client, server *net.TCPConn, idle time.Duration) error {
	var copied atomic.Int64 // bytes, if the system does not count them
	ended := make(chan error, 2)
	pipe := func(dst, src *net.TCPConn) {
		err := transfer(dst, src, &copied)
		if err == nil {
			err = dst.CloseWrite()
		}
		ended <- err
	}

	go pipe(server, client)
	go pipe(client, server)
	tick := time.NewTicker((idle + 1) / 2)
	defer tick.Stop()
	var failed error
	fail := func(err error) {
		failed = cmp.Or(failed, err)
		reset(client)
		reset(server)
	}

	last, since := int64(-1), time.Now()
	for open := 2; open > 0; {
		select {
		case err := <-ended:
			open--
			if err != nil {
				fail(err)
			}
		case <-tick.C:
			if n := copied.Load() + moved(client) + moved(server); n != last {
				last, since = n, time.Now()
			} else if time.Since(since) >= idle {
				fail(errIdle)
			}
		}
	}

	return failed
}

var errIdle = errors.New("nothing was sent for too long")

// reset closes a connection so that its peer sees a failure and not an end.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // closed means that it was reset before
	_ = c.Close()
}

// unmapped returns an address in the model's form: IPv4-mapped IPv6 addresses become IPv4.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// header returns the header of version 2 of the PROXY protocol (proxy-protocol.txt of HAProxy,
// section 2.2) for a TCP connection from src to dst. Both must be of the same family.
func header(src, dst netip.AddrPort) []byte {
	const signature = "\r\n\r\n\x00\r\nQUIT\n"
	const command, ipv4, ipv6 = 0x21, 0x11, 0x21 // version 2 PROXY; TCP over IPv4 and IPv6
	family := byte(ipv4)
	if src.Addr().Is6() {
		family = ipv6
	}
	addrs := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	b := append([]byte(signature), command, family)
	b = binary.BigEndian.AppendUint16(b, uint16(len(addrs)+4))
	b = append(b, addrs...)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	return binary.BigEndian.AppendUint16(b, dst.Port())
}
