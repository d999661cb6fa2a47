package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// socket listens for one protocol at one address and port.
type socket struct {
	b *Backend
	claim
	tcp *net.TCPListener // or
	udp *net.UDPConn
}

// listen opens the socket of a claim; [socket.serve] uses it.
func (b *Backend) listen(k claim) (*socket, error) {
	s := &socket{b: b, claim: k}
	family := "6" // its socket at [::] would take IPv4 as well
	if k.addr.Addr().Is4() {
		family = "4"
	}
	err := b.cfg.Within(func() (err error) {
		if k.protocol == servicemodel.UDP {
			s.udp, err = net.ListenUDP("udp"+family, net.UDPAddrFromAddrPort(k.addr))
		} else {
			s.tcp, err = net.ListenTCP("tcp"+family, net.TCPAddrFromAddrPort(k.addr))
		}

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen for %v: %w", k.service, err)
	}
	return s, nil
}

// serve accepts clients until the socket is closed.
func (s *socket) serve() {
	if s.udp != nil {
		s.b.work.Go(s.receive)
	} else {
		s.b.work.Go(s.accept)
	}
}

// close stops listening. UDP flows end, TCP connections do not.
func (s *socket) close() {
	if s.udp != nil {
		_ = s.udp.Close() // it is not used any more
	} else {
		_ = s.tcp.Close()
	}
}

// ended reports, after an error, whether the socket was closed. For other errors, such as a lack of
// file descriptors, it waits.
func (s *socket) ended(err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return true
	}
	s.b.full.warn(s.b.cfg.Logger, "cannot accept", "socket", s.where.String(), "error", err)
	time.Sleep(10 * time.Millisecond)
	return false
}

// notice limits the rate of a log record.
type notice struct{ last atomic.Int64 }

// warn logs, unless it did so in the last ten seconds.
func (n *notice) warn(log *slog.Logger, text string, args ...any) {
	now, last := time.Now().UnixNano(), n.last.Load()
	if (last == 0 || now-last > int64(10*time.Second)) && n.last.CompareAndSwap(last, now) {
		log.Warn(text, args...)
	}
}
