package netnstest

import (
	"fmt"
	"net/netip"
	"sync/atomic"
)

// Server answers each client with one line, "name address:port\n": its own name, and the source it saw. A TCP
// server greets each connection with that line and then echoes line by line; a UDP server sends the line for each
// datagram; an SCTP server answers an INIT chunk with an INIT ACK whose state cookie is the line.
type Server struct {
	Name  string
	Proto Protocol
	Addr  netip.AddrPort

	ns    *NS
	hits  atomic.Uint64
	close func() error
}

// Serve starts a server in the namespace. The address must be one of the namespace, not unspecified; port 0 takes
// a free one. The server runs until it or the namespace is closed.
func (ns *NS) Serve(name string, proto Protocol, addr netip.AddrPort) (*Server, error) {
	s := &Server{Name: name, Proto: proto, Addr: addr, ns: ns}
	if err := s.start(); err != nil {
		return nil, fmt.Errorf("netnstest: %s: serve %s on %s as %s: %w", ns.name, proto, addr, name, err)
	}
	return s, nil
}

// Hits returns how many connections, datagrams or INIT chunks the server has answered.
func (s *Server) Hits() uint64 { return s.hits.Load() }

// Close stops the server and closes its connections.
func (s *Server) Close() error {
	s.ns.disown(s)
	return s.close()
}

// line is what the server answers to a client at source.
func (s *Server) line(source netip.AddrPort) string {
	s.hits.Add(1)
	return fmt.Sprintf("%s %s\n", s.Name, source)
}
