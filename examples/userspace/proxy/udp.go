package proxy

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// udpFlow is a flow of a client. The lock of udpFlows guards the last fields.
type udpFlow struct {
	*conn
	from   udpClient
	server net.Conn

	answers int       // of the endpoint, counted up to enough
	used    time.Time // the time of the last datagram
}

// A flow with enough answers counts as in use. conntrack calls it assured.
const enough = 2

// udpClient is a client of a socket.
type udpClient struct {
	*socket
	addr netip.AddrPort
}

// udpFlows holds the UDP flows of all sockets, and bounds their number.
type udpFlows struct {
	most    int
	timeout time.Duration

	mu    sync.Mutex
	known map[udpClient]*udpFlow
}

// get returns the flow of a client for a datagram, or nil.
func (u *udpFlows) get(from udpClient) *udpFlow {
	u.mu.Lock()
	defer u.mu.Unlock()
	f := u.known[from]
	if f != nil {
		f.used = time.Now()
	}
	return f
}

// add adds a flow. At the limit, it removes and returns a flow of the service with the most flows:
// the flow with the fewest answers, and among equals the least recently used flow.
func (u *udpFlows) add(f *udpFlow) (last *udpFlow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.known) >= u.most {
		of := map[servicemodel.Name]int{f.service.Name: 1} // the flows of each service
		for _, k := range u.known {
			of[k.service.Name]++
		}
		for _, k := range u.known {
			if last == nil || cmp.Or(cmp.Compare(of[last.service.Name], of[k.service.Name]),
				cmp.Compare(k.answers, last.answers), k.used.Compare(last.used)) < 0 {
				last = k
			}
		}

		delete(u.known, last.from)
	}

	u.known[f.from] = f
	f.used = time.Now()
	return last
}

// remove forgets a flow, if it exists.
func (u *udpFlows) remove(f *udpFlow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.known[f.from] == f {
		delete(u.known, f.from)
	}
}

// answered notes an answer.
func (u *udpFlows) answered(f *udpFlow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f.answers, f.used = min(f.answers+1, enough), time.Now()
}

// expires returns the time at which a flow is forgotten if no datagram arrives.
func (u *udpFlows) expires(f *udpFlow) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f.answers < enough {
		return f.used.Add(u.timeout / 4)
	}
	return f.used.Add(u.timeout)
}

// receive forwards the datagrams of clients until the socket is closed.
func (s *socket) receive() {
	ctx, end := context.WithCancel(s.b.ctx)
	defer end() // its flows
	buf := make([]byte, maxDatagram+1)
	for {
		n, src, err := s.udp.ReadFromUDPAddrPort(buf)
		switch {
		case err != nil:
			if s.ended(err) {
				return
			}
		case n > maxDatagram:
			s.overflow("a datagram is too large", "limit", maxDatagram)
		default:
			f := s.b.flows.get(udpClient{s, src})
			if f == nil {
				f = s.begin(ctx, src)
			}
			if f != nil {
				// A datagram that cannot be sent is lost, as on any network. If the endpoint
				// refuses it, the other direction gets the error.
				_, _ = f.server.Write(buf[:n])
			}
		}
	}
}

func (s *socket) overflow(text string, args ...any) {
	s.b.count(func(s *Stats) { s.Overflows++ })
	s.b.full.warn(s.b.cfg.Logger, text, append(args, "socket", s.where.String())...)
}

// begin begins a flow. It returns nil if there is no endpoint.
func (s *socket) begin(ctx context.Context, src netip.AddrPort) *udpFlow {
	ctx, cancel := context.WithCancel(ctx)
	f := &udpFlow{from: udpClient{s, src}, conn: &conn{protocol: servicemodel.UDP,
		src: unmapped(src), dst: s.dst, cancel: cancel, ended: make(chan struct{})}}
	endpoint, err := s.b.choose(f.conn, nil)
	if err == nil {
		f.server, err = s.b.dial(ctx, servicemodel.UDP, endpoint)
	}
	if err != nil {
		s.b.leave(f.conn, true)
		cancel()
		close(f.ended)
		return nil
	}

	if last := s.b.flows.add(f); last != nil {
		last.cancel()
		s.overflow("as many UDP flows as may be: the least used one ends", "limit",
			s.b.cfg.MaxFlows)
	}

	s.b.work.Go(func() { s.answer(ctx, f) })
	return f
}

// answer forwards the datagrams of the endpoint until the flow expires, is cut, or the endpoint
// refuses a datagram. The next datagram of the client then begins a new flow.
func (s *socket) answer(ctx context.Context, f *udpFlow) {
	defer close(f.ended)
	defer context.AfterFunc(ctx, func() { _ = f.server.Close() })() // which ends the reading
	err := s.copyAnswers(f)
	s.b.flows.remove(f)
	s.b.leave(f.conn, err != nil && ctx.Err() == nil)
	f.cancel()
	_ = f.server.Close()
}

// copyAnswers returns nil when the flow has expired.
func (s *socket) copyAnswers(f *udpFlow) error {
	buf := make([]byte, maxDatagram+1)
	for {
		expires := s.b.flows.expires(f)
		if !time.Now().Before(expires) {
			return nil
		}
		if err := f.server.SetReadDeadline(expires); err != nil {
			return err
		}
		n, err := f.server.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return err
		case n > maxDatagram:
			s.overflow("an answer is too large", "limit", maxDatagram)
			continue
		}

		s.b.flows.answered(f)
		_, _ = s.udp.WriteToUDPAddrPort(buf[:n], f.from.addr) // lost, as on any network
	}
}
