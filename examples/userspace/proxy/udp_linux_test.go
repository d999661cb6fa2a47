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

	"github.com/kernlb/kernlb/servicemodel"
)

// udpServers answer each datagram with their number and what it says.
func udpServers(t *testing.T, n int) (all []netip.AddrPort) {
	for i := range n {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
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
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.at, 80)))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a datagram until it is answered: what is refused or lost is sent again. Late answers to
// others are passed over.
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

func TestAFlowIsForgotten(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{UDPTimeout: 50 * time.Millisecond}, udpServers(t, 1)...)
	s.apply(state(service(), 1))
	ask(t, s.socket(), "a")
	eventually(t, "the flow is forgotten", func() bool { return s.Stats().Open == 0 })
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
	s := newSite(t, Config{MaxFlows: 1, MaxDatagram: 100}, udpServers(t, 1)...)
	s.apply(state(service(), 1))
	c := s.socket()
	ask(t, c, "a")
	unanswered(t, s.socket(), "no room for another flow")
	unanswered(t, c, string(make([]byte, 101)))
	require.Len(t, ask(t, c, string(make([]byte, 98))), 100)
	unanswered(t, c, string(make([]byte, 99))) // the answer is too large
	eventually(t, "all are counted", func() bool { return s.Stats().Overflows == 3 })
}
