package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// udpFlows are the flows of one socket, by client.
type udpFlows struct {
	*socket
	mu    sync.Mutex
	known map[netip.AddrPort]*udpFlow
}

// udpFlow is what one client sends, and is answered.
type udpFlow struct {
	*conn
	server *net.UDPConn
	used   atomic.Int64 // when there was a datagram last, in nanoseconds
}

// receive forwards the datagrams of clients until the socket is closed.
func (l *udpFlows) receive() {
	buf := make([]byte, l.b.cfg.MaxDatagram+1)
	for {
		n, src, err := l.udp.ReadFromUDPAddrPort(buf)
		switch {
		case err != nil:
			if l.ended(err) {
				return
			}
		case n > l.b.cfg.MaxDatagram:
			l.overflow("a datagram is too large", "limit", l.b.cfg.MaxDatagram)
		default:
			if f := l.flow(src); f != nil {
				f.used.Store(time.Now().UnixNano())
				// What cannot be sent is lost, as on any network. Where the endpoint refuses,
				// the other direction learns of it.
				_, _ = f.server.Write(buf[:n])
			}
		}
	}
}

func (l *udpFlows) overflow(text string, args ...any) {
	l.b.count(func(s *Stats) { s.Overflows++ })
	l.b.full.warn(l.b.cfg.Logger, text, append(args, "socket", l.where.String())...)
}

// flow returns the flow of a client, which it begins if there is none, or nil.
func (l *udpFlows) flow(src netip.AddrPort) *udpFlow {
	l.mu.Lock()
	f := l.known[src]
	l.mu.Unlock()
	if f != nil {
		return f
	}
	if !l.b.reserve() {
		l.overflow("as many UDP flows as may be", "limit", l.b.cfg.MaxFlows)
		return nil
	}
	f, ctx := l.begin(src)
	if f == nil {
		l.b.release()
		return nil
	}
	l.mu.Lock()
	l.known[src] = f
	l.mu.Unlock()
	l.b.work.Go(func() {
		defer l.b.release()
		l.answer(ctx, f, src)
	})
	return f
}

// begin gives a client an endpoint. It returns nil if there is none.
func (l *udpFlows) begin(src netip.AddrPort) (*udpFlow, context.Context) {
	ctx, cancel := context.WithCancel(l.ctx)
	f := &udpFlow{conn: &conn{protocol: servicemodel.UDP, src: unmapped(src), dst: l.dst,
		cancel: cancel, ended: make(chan struct{})}}
	f.used.Store(time.Now().UnixNano())
	var tried []netip.AddrPort
	for {
		endpoint, err := l.b.choose(f.conn, tried)
		if err == nil && ctx.Err() != nil { // it was cut, or the socket is closed
			l.b.leave(f.conn, false)
			err = ctx.Err()
		}
		if err != nil {
			cancel()
			close(f.ended)
			return nil, nil
		}
		if f.server, err = l.b.dialUDP(ctx, endpoint); err == nil {
			return f, ctx
		}
		l.b.leave(f.conn, true)
		tried = append(tried, endpoint)
	}
}

func (b *Backend) dialUDP(
	ctx context.Context, endpoint netip.AddrPort,
) (c *net.UDPConn, err error) {
	at, ok := b.cfg.Map.At(endpoint)
	if !ok {
		return nil, errUnmapped
	}
	err = b.cfg.Within(func() (err error) {
		c, err = new(net.Dialer).DialUDP(ctx, "udp", netip.AddrPort{}, at)
		return err
	})
	return c, err
}

// answer forwards the datagrams of the endpoint, until the flow was not used for some time, is cut,
// or the endpoint refuses it: then the next datagram of the client begins another.
func (l *udpFlows) answer(ctx context.Context, f *udpFlow, src netip.AddrPort) {
	defer close(f.ended)
	stop := context.AfterFunc(ctx, func() { _ = f.server.Close() }) // which ends the reading
	defer stop()
	err := l.copyAnswers(f, src)
	l.mu.Lock()
	delete(l.known, src)
	l.mu.Unlock()
	l.b.leave(f.conn, err != nil && ctx.Err() == nil)
	f.cancel()
	_ = f.server.Close()
}

// copyAnswers returns nil when the flow was not used for its time.
func (l *udpFlows) copyAnswers(f *udpFlow, src netip.AddrPort) error {
	buf := make([]byte, l.b.cfg.MaxDatagram+1)
	for {
		idle := time.Since(time.Unix(0, f.used.Load()))
		if idle >= l.b.cfg.UDPTimeout {
			return nil
		}
		err := f.server.SetReadDeadline(time.Now().Add(l.b.cfg.UDPTimeout - idle))
		if err != nil {
			return err
		}
		n, err := f.server.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return err
		case n > l.b.cfg.MaxDatagram:
			l.overflow("an answer is too large", "limit", l.b.cfg.MaxDatagram)
			continue
		}
		f.used.Store(time.Now().UnixNano())
		_, _ = l.udp.WriteToUDPAddrPort(buf[:n], src) // lost, as on any network
	}
}

// reserve takes room for a UDP flow, if there is any.
func (b *Backend) reserve() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flows >= b.cfg.MaxFlows {
		return false
	}
	b.flows++
	return true
}

func (b *Backend) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flows--
}
