package proxy

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
)

func TestASecondProxyInheritsTheSockets(t *testing.T) {
	t.Parallel()
	to := echoes(t, 1)
	datagrams, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(to[0]))
	require.NoError(t, err)
	t.Cleanup(func() { datagrams.Close() })
	go echoDatagrams(datagrams)
	first := newSite(t, Config{}, to...)
	first.apply(state(service(), 1))
	files, err := first.Sockets()
	require.NoError(t, err)
	require.Len(t, files, 2)
	other, err := net.Listen("tcp", "127.0.0.1:0") // which no service is at
	require.NoError(t, err)
	lost, err := copySocket(other.(*net.TCPListener))
	require.NoError(t, err)
	require.NoError(t, other.Close())

	again, err := first.Sockets()
	require.NoError(t, err)
	cfg := first.cfg
	cfg.Inherited = append(append(files, lost), again...)
	b, err := New(&cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	_, err = dataplane.New(b, nil).Apply(t.Context(), state(service(), 1))
	require.NoError(t, err)
	_, err = net.Dial("tcp", other.Addr().String())
	require.Error(t, err, "it is closed")

	open, _ := first.visit()
	_, err = first.engine.Cleanup(t.Context())
	require.NoError(t, err)
	for range 20 {
		_, name := first.visit()
		require.Equal(t, "1", name)
	}
	says(t, open)
	require.NotZero(t, b.Stats().Balanced)
	udp, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: first.at.AsSlice(), Port: 80})
	require.NoError(t, err)
	defer udp.Close()
	says(t, udp)
}

func echoDatagrams(c *net.UDPConn) {
	b := make([]byte, 64)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		_, _ = c.WriteToUDPAddrPort(b[:n], from)
	}
}

// says sends a word, and expects it back.
func says(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := c.Write([]byte("word"))
	require.NoError(t, err)
	b := make([]byte, 16)
	n, err := c.Read(b)
	require.NoError(t, err)
	require.Equal(t, "word", string(b[:n]))
}

func TestWhatIsNoListenerIsNotInherited(t *testing.T) {
	t.Parallel()
	f, err := os.Open("/dev/null")
	require.NoError(t, err)
	_, err = New(&Config{Inherited: []*os.File{f}})
	require.ErrorContains(t, err, "inherited socket 0: is no socket that listens: ")
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	defer l.Close()
	f, err = copySocket(l.(*net.UnixListener))
	require.NoError(t, err)
	_, err = New(&Config{Inherited: []*os.File{f}})
	require.ErrorContains(t, err, "want TCP or UDP")
}
