package proxy

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// A client that has closed its sending direction still gets answers.
func TestHalfCloseIsPassedOn(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, listener(t, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c)
		c.Write(bytes.ToUpper(all))
	}))
	s.apply(state(service(), 1))
	c := s.dial()
	must.OK(c.Write([]byte("hello")))(t)
	require.NoError(t, c.CloseWrite())
	answer := must.OK(io.ReadAll(c))(t)
	require.Equal(t, "HELLO", string(answer))
	eventually(t, "the connection ends", func() bool { return s.Stats().Open == 0 })
}

func TestAResetIsPassedOn(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, listener(t, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		c.SetLinger(0)
	}))
	s.apply(state(service(), 1))
	c := s.dial()
	must.OK(c.Write([]byte("x")))(t)
	_, err := io.ReadAll(c)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// Data that does not fit waits at the client; no byte is lost or changed.
func TestASlowReaderSlowsTheSender(t *testing.T) {
	t.Parallel()
	start, sum := make(chan struct{}), make(chan []byte, 1)
	s := newSite(t, Config{}, listener(t, func(c *net.TCPConn) {
		<-start
		h := sha256.New()
		io.Copy(h, c)
		sum <- h.Sum(nil)
	}))
	s.apply(state(service(), 1))
	c := s.dial()
	data := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(data)
	want, sent := sha256.New(), 0

	// Until it blocks: buffers are full then.
	for err := error(nil); err == nil; {
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
		var n int
		n, err = c.Write(data)
		want.Write(data[:n])
		sent += n
		require.Less(t, sent, 256<<20, "nobody reads, and it was all taken")
	}

	close(start)
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(patience)))
	must.OK(c.Write(data))(t)
	want.Write(data)
	require.NoError(t, c.CloseWrite())
	require.Equal(t, want.Sum(nil), <-sum)
}

func TestAnotherEndpointIsAsked(t *testing.T) {
	t.Parallel()
	for by := range costs {
		s := newSite(t, Config{}, closed(t), echoes(t, 1)[0])
		s.apply(state(service(scheduled(by)), 1, 2))
		for range 4 {
			_, name := s.visit()
			require.Equal(t, "1", name, "%s", by)
		}
	}
}

func TestAClientIsResetIfNobodyAccepts(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, closed(t), closed(t), closed(t), closed(t))
	s.apply(state(service(), 1, 2, 3, 4))
	s.requireReset()
	eventually(t, "it is counted", func() bool {
		return s.Stats() == Stats{Balanced: 3, Retried: 2, Failed: 1}
	})
}

// A silent endpoint costs the connect timeout.
func TestASilentEndpointIsGivenUp(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{ConnectTimeout: time.Second}, silence(t), echoes(t, 1)[0])
	s.apply(state(service(), 1, 2))
	for range 2 {
		_, name := s.visit()
		require.Equal(t, "1", name)
	}

	require.Positive(t, s.Stats().Retried)
}

func TestAnIdleConnectionIsReset(t *testing.T) {
	t.Parallel()
	const idle = 4 * time.Second
	s := newSite(t, Config{IdleTimeout: idle}, echoes(t, 1)[0])
	s.apply(state(service(), 1))
	c, _ := s.visit()

	// A byte in one direction keeps both directions alive.
	for start := time.Now(); time.Since(start) < idle*5/4; time.Sleep(idle / 20) {
		must.OK(c.Write([]byte("x")))(t)
	}
	_, err := io.ReadAll(c)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestConnectionsBeyondTheLimitWait(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{MaxConnections: 2}, echoes(t, 1)[0])
	s.apply(state(service(), 1))
	first, _ := s.visit()
	s.visit()
	third := s.dial()
	require.NoError(t, third.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err := third.Read(make([]byte, 1))
	require.ErrorContains(t, err, "timeout")
	require.NoError(t, third.SetReadDeadline(time.Now().Add(patience)))
	first.Close()
	name := must.OK(greeting(third))(t)
	require.Equal(t, "1", name)
}

func TestCloseResetsAndEndsEverything(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, echoes(t, 1)[0], udpServers(t, 1)[0])
	s.apply(state(service(), 1, 2))
	c, _ := s.visit()
	require.NoError(t, s.Close())
	_, err := io.ReadAll(c)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = s.engine.Apply(t.Context(), state(service(), 1))
	require.ErrorContains(t, err, "the proxy is closed")
}

func TestTheEndpointLearnsOfTheClient(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	server := listener(t, func(c *net.TCPConn) {
		b := make([]byte, 256)
		n, _ := io.ReadAtLeast(c, b, 28)
		got <- string(b[:n])
	})
	s := newSite(t, Config{Header: func(n servicemodel.Name) bool { return n == web }}, server)
	s.apply(state(service(), 1))
	c := s.dial()
	src := c.LocalAddr().(*net.TCPAddr).AddrPort()
	require.Equal(t, string(header(src, netip.AddrPortFrom(webIP, 80))), <-got)
}

// A connection that still waits for an endpoint is cut like other connections when the endpoint is
// removed, and the cut does not wait for the endpoint.
func TestAConnectionThatIsNotThereYetIsCut(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{ConnectTimeout: time.Hour}, silence(t), echoes(t, 1)[0])
	cut := service(func(v *servicemodel.Service) {
		v.Connections.Mode = servicemodel.CutConnections
	})
	s.apply(state(cut, 1))
	c := s.dial()
	eventually(t, "it is given an endpoint", func() bool { return s.Stats().Open == 1 })
	s.apply(state(cut, 2))
	_, err := greeting(c)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Zero(t, s.Stats().Open)
	_, name := s.visit()
	require.Equal(t, "1", name)
}

// gushes sends without end.
func gushes(t *testing.T) netip.AddrPort {
	return listener(t, func(c *net.TCPConn) {
		for err := error(nil); err == nil; {
			_, err = c.Write(make([]byte, 64<<10))
		}
	})
}

// A client that reads slowly is not idle, even if it takes longer than the idle timeout to read the
// data that the proxy wrote at once.
func TestASlowReaderIsNotIdle(t *testing.T) {
	t.Parallel()
	const idle = 3 * time.Second
	s := newSite(t, Config{IdleTimeout: idle}, gushes(t))
	s.apply(state(service(), 1))
	c := s.dial()
	for start := time.Now(); time.Since(start) < 4*idle; time.Sleep(10 * time.Millisecond) {
		_, err := c.Read(make([]byte, 5000)) // 0.5 MB/s at most
		require.NoError(t, err)
	}
}

// A client that no longer reads is idle, whether it has closed its direction or not.
func TestAConnectionThatNobodyReadsIsReset(t *testing.T) {
	t.Parallel()
	for _, halfClosed := range []bool{false, true} {
		s := newSite(t, Config{IdleTimeout: 200 * time.Millisecond}, gushes(t))
		s.apply(state(service(), 1))
		c := s.dial()
		require.NoError(t, c.SetReadBuffer(4096))
		if halfClosed {
			require.NoError(t, c.CloseWrite())
		}
		eventually(t, "it is balanced", func() bool { return s.Stats().Balanced == 1 })
		eventually(t, "it is reset", func() bool { return s.Stats().Open == 0 })
	}
}
