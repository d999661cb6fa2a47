package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// socket listens for one protocol at one address and port.
type socket struct {
	b *Backend
	where
	dst  netip.AddrPort // what its clients ask for
	ctx  context.Context
	stop context.CancelFunc

	tcp   *net.TCPListener
	udp   *net.UDPConn
	flows *udpFlows // of udp

	claims []claim // guarded by the lock of the backend
	broken bool    // so is this: it failed
}

// open opens a socket; [socket.serve] uses it.
func (b *Backend) open(w where, claims []claim) (*socket, error) {
	s := &socket{b: b, where: w, dst: claims[0].dst, claims: claims}
	var err error
	switch l := b.inherited[w].(type) {
	case *net.TCPListener:
		s.tcp = l
	case *net.UDPConn:
		s.udp = l
	default:
		if w.protocol == servicemodel.UDP {
			s.udp, err = b.listenUDP(w.addr)
		} else {
			s.tcp, err = b.listenTCP(w.addr)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen for %v: %w", claims[0].service, err)
	}
	s.ctx, s.stop = context.WithCancel(b.ctx)
	return s, nil
}

// serve accepts clients until the socket is closed.
func (s *socket) serve() {
	if s.udp != nil {
		s.flows = &udpFlows{socket: s, known: map[netip.AddrPort]*udpFlow{}}
		s.b.work.Go(s.flows.receive)
	} else {
		s.b.accepting.Add(1)
		s.b.work.Go(s.accept)
	}
}

// close stops listening. UDP flows end, TCP connections do not.
func (s *socket) close() {
	s.stop()
	if s.udp != nil {
		_ = s.udp.Close() // it is not used any more
	} else {
		_ = s.tcp.Close()
	}
}

// ended reports whether the socket is of no use after an error: it was closed, or broke. Other
// errors, such as a lack of file descriptors, are waited out.
func (s *socket) ended(err error) bool {
	if s.ctx.Err() != nil {
		return true
	}
	if errors.Is(err, net.ErrClosed) {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		s.broken = true
		return true
	}
	s.b.full.warn(s.b.cfg.Logger, "cannot accept", "socket", s.where.String(), "error", err)
	select {
	case <-s.ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
	return false
}

// notice bounds how often something is logged.
type notice struct{ last atomic.Int64 }

// noticeEvery is the least time between two records of one kind.
const noticeEvery = 10 * time.Second

// warn logs, unless it did so a moment ago.
func (n *notice) warn(log *slog.Logger, text string, args ...any) {
	now, last := time.Now().UnixNano(), n.last.Load()
	if (last == 0 || now-last > int64(noticeEvery)) && n.last.CompareAndSwap(last, now) {
		log.Warn(text, args...)
	}
}
