package netnstest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Server answers each client with one line, "name address:port\n": its own name, and the source
// that it saw. A TCP server greets each connection with that line and then echoes all data. A UDP
// server sends the line for each datagram. An SCTP server answers an INIT chunk with an INIT ACK
// whose state cookie is the line. At an address with an SCTP server, INITs to other ports are
// answered with an ABORT.
type Server struct {
	// Name is the server's name in its answers.
	Name string
	// Proto is TCP, UDP or SCTP.
	Proto servicemodel.Protocol
	// Addr is the address and port at which the server listens.
	Addr netip.AddrPort

	ns   *NS
	hits atomic.Uint64
	stop func() error
	work sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.TCPConn]struct{} // of a TCP server; nil once closed
}

// Serve starts a server in the namespace. The address must belong to the namespace. Port 0 means
// any free port, for TCP and UDP. The server runs until the server or the namespace is closed.
func (ns *NS) Serve(name string, proto servicemodel.Protocol, addr netip.AddrPort) (*Server,
	error) {
	s := &Server{Name: name, Proto: proto, Addr: addr, ns: ns, conns: map[*net.TCPConn]struct{}{}}
	if err := s.start(); err != nil {
		return nil, fmt.Errorf("netnstest: %s: serve %s on %s as %s: %w", ns.name, proto, addr,
			name, err)
	}

	return s, nil
}

// Hits returns the number of connections, datagrams or INIT chunks that the server has answered.
func (s *Server) Hits() uint64 { return s.hits.Load() }

// Close stops the server, resets its connections, and waits until it has ended.
func (s *Server) Close() error {
	s.ns.disown(s)
	err := s.stop()
	s.mu.Lock()
	for c := range s.conns {
		reset(c)
	}
	s.conns = nil
	s.mu.Unlock()
	s.work.Wait()
	return err
}

func (s *Server) start() error {
	if !s.Addr.IsValid() || s.Addr.Addr().IsUnspecified() {
		return errors.New("needs one address")
	}
	var err error
	switch s.Proto {
	case servicemodel.TCP:
		err = s.startTCP()
	case servicemodel.UDP:
		err = s.startUDP()
	case servicemodel.SCTP:
		err = s.startSCTP()
	default:
		err = errors.New("unknown protocol")
	}

	if err != nil {
		return err
	}
	if err := s.ns.own(s); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// line is the server's answer to a client at source.
func (s *Server) line(source fmt.Stringer) []byte {
	s.hits.Add(1)
	return fmt.Appendf(nil, "%s %s\n", s.Name, source)
}

func (s *Server) startTCP() error {
	var l *net.TCPListener
	err := s.ns.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(s.Addr))
		return err
	})
	if err != nil {
		return err
	}
	s.stop, s.Addr = l.Close, l.Addr().(*net.TCPAddr).AddrPort()
	s.work.Go(func() {
		for {
			conn, err := l.AcceptTCP()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(time.Millisecond) // out of file descriptors, perhaps
				continue
			}

			if s.hold(conn) {
				s.work.Go(func() { s.converse(conn) })
			}
		}
	})

	return nil
}

// hold makes Close close the connection. If the server is already closed, hold closes the
// connection itself.
func (s *Server) hold(conn *net.TCPConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		reset(conn)
		return false
	}

	s.conns[conn] = struct{}{}
	return true
}

// converse greets a client, then echoes.
func (s *Server) converse(conn *net.TCPConn) {
	defer func() {
		conn.Close() //nolint:errcheck // nothing is owed to the client
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, conn)
	}()

	if err := conn.SetKeepAlive(false); err != nil {
		return
	}
	if _, err := conn.Write(s.line(conn.RemoteAddr())); err != nil {
		return
	}

	// This loop is not io.Copy, which would need two more file descriptors per connection for
	// splice(2).
	buf := make([]byte, 128)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return
		}
	}
}

// reset ends a connection at once. Otherwise, the kernel would close it in the background, and the
// connection would keep its namespace alive.
func reset(conn *net.TCPConn) {
	conn.SetLinger(0) //nolint:errcheck // the next call has the same error
	conn.Close()      //nolint:errcheck // nothing is owed to the client
}

func (s *Server) startUDP() error {
	var conn *net.UDPConn
	err := s.ns.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(s.Addr))
		return err
	})
	if err != nil {
		return err
	}
	s.stop, s.Addr = conn.Close, conn.LocalAddr().(*net.UDPAddr).AddrPort()
	s.work.Go(func() {
		buf := make([]byte, 2048)
		for {
			_, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				// nolint:errcheck // the network may lose packets
				conn.WriteToUDPAddrPort(s.line(from), from)
			}
		}
	})

	return nil
}
