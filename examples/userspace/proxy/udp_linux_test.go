package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// udpServers starts servers that answer each datagram with their number and its text.
func udpServers(t *testing.T, n int) (all []netip.AddrPort) {
	for i := range n {
		c := must.OK(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
		t.Cleanup(func() { c.Close() })
		go func() {
			buf := make([]byte, 1<<16)
			for {
				n, from, err := c.ReadFromUDPAddrPort(buf)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				c.WriteToUDPAddrPort(fmt.Appendf(nil, "%d %s", i+1, buf[:n]), from)
			}
		}()

		all = append(all, c.LocalAddr().(*net.UDPAddr).AddrPort())
	}

	return all
}

// socket is a client's socket.
func (s *site) socket() *net.UDPConn {
	s.t.Helper()
	c := must.OK(net.DialUDP("udp", nil,
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.at, 80))))(s.t)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a datagram until it is answered: a refused or lost datagram is sent again. Late answers
// to other datagrams are ignored.
func ask(t *testing.T, c *net.UDPConn, text string) string {
	t.Helper()
	buf := make([]byte, 1<<16)
	for start := time.Now(); time.Since(start) < patience; time.Sleep(time.Millisecond) {
		c.Write([]byte(text))
		require.NoError(t, c.SetReadDeadline(time.Now().Add(2*time.Second)))
		n, err := c.Read(buf)
		for err == nil && !strings.HasSuffix(string(buf[:n]), text) {
			n, err = c.Read(buf)
		}
		if err == nil {
			return string(buf[:n])
		}
	}

	t.Fatal("no answer")
	return ""
}

// unanswered requires that a datagram is not answered.
func unanswered(t *testing.T, c *net.UDPConn, text string) {
	t.Helper()
	c.Write([]byte(text))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestAFlowStaysWithItsEndpoint(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, udpServers(t, 2)...)
	s.apply(state(service(), 1, 2))
	names := map[string]bool{}
	for range 4 {
		c := s.socket()
		first := ask(t, c, "a")
		names[first] = true
		for range 3 {
			require.Equal(t, first, ask(t, c, "a"))
		}
	}

	require.Equal(t, map[string]bool{"1 a": true, "2 a": true}, names)
	require.Equal(t, 4, s.Stats().Open)
}

func TestAFlowMovesIfItsEndpointRefuses(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, closed(t), udpServers(t, 1)[0])
	affinity := func(s *servicemodel.Service) {
		s.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true}
	}
	for _, edit := range []func(*servicemodel.Service){scheduled(""), affinity} {
		s.apply(state(service(edit), 1, 2))
		require.Equal(t, "1 a", ask(t, s.socket(), "a"))
	}
}

func TestFlowsEndWithTheirEndpointAndTheirService(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, udpServers(t, 2)...)
	s.apply(state(service(), 1))
	c := s.socket()
	require.Equal(t, "1 a", ask(t, c, "a"))
	s.apply(state(service(), 2))
	require.Equal(t, "2 b", ask(t, c, "b"))
	s.apply(servicemodel.State{})
	eventually(t, "the flow ends", func() bool { return s.Stats().Open == 0 })
	c.Write([]byte("a"))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, err := c.Read(make([]byte, 1))
	require.ErrorContains(t, err, "refused")
}

func TestDatagramsAreBounded(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, udpServers(t, 1)...)
	s.apply(state(service(), 1))
	c := s.socket()
	ask(t, c, "a")
	unanswered(t, c, string(make([]byte, maxDatagram+1)))
	require.Len(t, ask(t, c, string(make([]byte, maxDatagram-2))), maxDatagram)
	unanswered(t, c, string(make([]byte, maxDatagram-1))) // the answer is too large
	eventually(t, "all are counted", func() bool { return s.Stats().Overflows == 2 })
}

// A flow expires after a quarter of the timeout until it was answered twice.
func TestAFlowThatIsInUseIsKeptLonger(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{UDPTimeout: 12 * time.Second}, udpServers(t, 1)...)
	s.apply(state(service(), 1))
	c := s.socket()
	ask(t, c, "a")
	ask(t, c, "b")
	ask(t, s.socket(), "once")
	require.Equal(t, 2, s.Stats().Open)
	start := time.Now()
	eventually(t, "one is forgotten", func() bool { return s.Stats().Open == 1 })
	require.Less(t, time.Since(start), 9*time.Second)
	ask(t, c, "c")
	require.Equal(t, 2, s.Stats().Balanced, "it was the other")
}

// At the maximum number of flows, a new flow replaces the least recently used flow, and replaces
// flows in use last.
func TestANewFlowTakesThePlaceOfAnIdleOne(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{MaxFlows: 3}, udpServers(t, 2)...)
	s.apply(state(service(scheduled(servicemodel.RoundRobin)), 1))
	inUse := s.socket()
	ask(t, inUse, "a")
	ask(t, inUse, "a")
	for range 10 { // each of another client, answered once
		ask(t, s.socket(), "b")
	}
	ask(t, inUse, "a")
	require.Equal(t, 11, s.Stats().Balanced, "it has its flow still")
	require.Equal(t, 8, s.Stats().Overflows)
	eventually(t, "the others ended", func() bool { return s.Stats().Open == 3 })
}

// A service with many clients takes no flow from a service with few clients.
func TestServicesShareTheFlows(t *testing.T) {
	t.Parallel()
	u := udpFlows{most: 4, timeout: time.Minute, known: map[udpClient]*udpFlow{}}
	begin := func(name string, port uint16) (*udpFlow, *udpFlow) {
		f := &udpFlow{conn: &conn{service: servicemodel.PortName{
			Name: servicemodel.Name{Name: name}}}, from: udpClient{nil, netip.AddrPortFrom(
			netip.AddrFrom4([4]byte{192, 0, 2, name[0]}), port)}}
		return f, u.add(f)
	}

	few, ended := begin("few", 1)
	require.Nil(t, ended)
	var many []*udpFlow
	for port := range uint16(6) {
		f, ended := begin("many", port)
		many = append(many, f)
		if port < 3 {
			require.Nil(t, ended)
		} else {
			require.Same(t, many[port-3], ended)
		}
	}

	u.answered(many[3])
	u.answered(many[3])
	_, ended = begin("few", 2)
	require.Same(t, many[4], ended, "unanswered ones first")
	_, ended = begin("few", 3)
	require.Equal(t, few, ended, "equal shares: each takes from its own")
	u.remove(few)
	require.Len(t, u.known, 4)
	for _, f := range []*udpFlow{many[3], many[5]} {
		require.Same(t, f, u.get(f.from))
		u.remove(f)
	}

	require.Len(t, u.known, 2, "of few")
}
