package netnstest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"

	"github.com/kernlb/kernlb/servicemodel"
)

// sctpServers are the SCTP servers of a namespace. Servers at one address share a raw socket. While
// the socket is open, the kernel ignores SCTP packets to that address, so this package must refuse
// packets to ports without a server.
type sctpServers struct {
	mu        sync.Mutex
	endpoints map[netip.Addr]*sctpEndpoint
}

// sctpEndpoint is one address with SCTP servers.
type sctpEndpoint struct {
	conn  *net.IPConn
	ports map[uint16]*Server // guarded by sctpServers.mu
	work  sync.WaitGroup
}

func (s *Server) startSCTP() error {
	if s.Addr.Port() == 0 {
		return errors.New("needs a port")
	}
	s.stop = s.stopSCTP
	all := &s.ns.sctp
	all.mu.Lock()
	defer all.mu.Unlock()
	e := all.endpoints[s.Addr.Addr()]
	if e == nil {
		var err error
		if e, err = all.open(s.ns, s.Addr.Addr()); err != nil {
			return err
		}
	}

	if e.ports[s.Addr.Port()] != nil {
		return errors.New("address already in use")
	}
	e.ports[s.Addr.Port()] = s
	return nil
}

// open returns a new endpoint. The lock is held.
func (all *sctpServers) open(ns *NS, addr netip.Addr) (*sctpEndpoint, error) {
	e := &sctpEndpoint{ports: map[uint16]*Server{}}
	err := ns.Do(func() (err error) {
		network := fmt.Sprintf("ip:%d", servicemodel.SCTP)
		e.conn, err = net.ListenIP(network, &net.IPAddr{IP: addr.AsSlice()})
		return err
	})
	if err != nil {
		return nil, err
	}
	if all.endpoints == nil {
		all.endpoints = map[netip.Addr]*sctpEndpoint{}
	}
	all.endpoints[addr] = e
	e.work.Go(func() { all.serve(e) })
	return e, nil
}

// stopSCTP stops listening, and closes the endpoint with its last server.
func (s *Server) stopSCTP() error {
	all := &s.ns.sctp
	all.mu.Lock()
	e := all.endpoints[s.Addr.Addr()]
	if e == nil || e.ports[s.Addr.Port()] != s {
		all.mu.Unlock()
		return net.ErrClosed
	}

	delete(e.ports, s.Addr.Port())
	last := len(e.ports) == 0
	if last {
		delete(all.endpoints, s.Addr.Addr())
	}
	all.mu.Unlock()
	if !last {
		return nil
	}
	err := e.conn.Close()
	e.work.Wait()
	return err
}

// serve answers INIT chunks until the endpoint is closed.
func (all *sctpServers) serve(e *sctpEndpoint) {
	buf := make([]byte, 2048)
	for {
		n, from, err := e.conn.ReadFromIP(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		in, ok := decodeSCTP(buf[:n])
		if err != nil || !ok || in.Chunk != sctpInit {
			continue
		}
		out := sctpPacket{SrcPort: in.DstPort, DstPort: in.SrcPort, Tag: in.InitTag,
			Chunk: sctpAbort}
		all.mu.Lock()
		server := e.ports[in.DstPort]
		all.mu.Unlock()
		if addr, ok := netip.AddrFromSlice(from.IP); ok && server != nil {
			out.Chunk, out.InitTag = sctpInitAck, rand.Uint32()|1
			out.Cookie = string(server.line(netip.AddrPortFrom(addr.Unmap(), in.SrcPort)))
		}

		e.conn.WriteToIP(out.encode(), from) //nolint:errcheck // the network may lose packets
	}
}
