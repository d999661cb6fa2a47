package proxy

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// benchmark runs the same client against a server, and against the proxy in front of ten such
// servers.
func benchmark(
	b *testing.B, serve func(*net.TCPConn), client func(b *testing.B, at netip.AddrPort),
) {
	l := must.OK(net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))(b)
	defer l.Close()
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			go func() { defer c.Close(); serve(c) }()
		}
	}()

	server := l.Addr().(*net.TCPAddr).AddrPort()
	b.Run("direct", func(b *testing.B) { client(b, server) })
	b.Run("proxy", func(b *testing.B) { client(b, benchProxy(b, server)) })
}

// benchProxy starts a proxy with 1,000 services of ten endpoints. Only one service is used.
func benchProxy(b *testing.B, server netip.AddrPort) netip.AddrPort {
	at := netip.AddrPortFrom(loopback(), 80)
	p, err := New(&Config{Map: Mapping{
		{From: netip.PrefixFrom(webIP, 32), To: at.Addr()},
		{From: netip.MustParsePrefix("10.96.0.0/12")}, // the other services are nowhere
		{From: netip.MustParsePrefix("10.244.0.0/16"), To: server.Addr(), ToPort: server.Port()}}})
	require.NoError(b, err)
	b.Cleanup(func() { p.Close() })
	s := state(service(), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	for i := range 1000 {
		other := service()
		other.Name.Name = netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}).String()
		other.ClusterIPs = []netip.Addr{netip.MustParseAddr(other.Name.Name)}
		s = s.WithService(other).WithEndpoints(other.Name, s.Endpoints(web))
	}

	table := must.OK(servicemodel.Resolve(nil, s))(b)
	must.OK(p.Commit(b.Context(), servicemodel.Diff(nil, table)))(b)
	return at
}

func dialBench(b *testing.B, at netip.AddrPort) *net.TCPConn {
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(at))
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// BenchmarkThroughput sends a mebibyte at a time over one connection.
func BenchmarkThroughput(b *testing.B) {
	benchmark(b, func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		_, _ = c.Write([]byte("x"))
	}, func(b *testing.B, at netip.AddrPort) {
		c, data := dialBench(b, at), make([]byte, 1<<20)
		defer c.Close()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := c.Write(data); err != nil {
				b.Fatal(err)
			}
		}

		_ = c.CloseWrite()
		if _, err := c.Read(data[:1]); err != nil { // all has arrived
			b.Fatal(err)
		}
	})
}

// BenchmarkConnections connects, sends a byte, is answered and closes.
func BenchmarkConnections(b *testing.B) {
	benchmark(b, echoByte, func(b *testing.B, at netip.AddrPort) {
		for b.Loop() {
			c := dialBench(b, at)
			roundTrip(b, c)
			reset(c) // leaves no port in TIME_WAIT
		}
	})
}

// BenchmarkRoundTrip sends a byte on an open connection, and is answered.
func BenchmarkRoundTrip(b *testing.B) {
	benchmark(b, echoByte, func(b *testing.B, at netip.AddrPort) {
		c := dialBench(b, at)
		defer c.Close()
		for b.Loop() {
			roundTrip(b, c)
		}
	})
}

func echoByte(c *net.TCPConn) { _, _ = io.Copy(c, c) }

func roundTrip(b *testing.B, c *net.TCPConn) {
	buf := []byte{'x'}
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(buf); err != nil {
		b.Fatal(err)
	}
	if _, err := c.Read(buf); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkChoose decides about a connection and gives it one of ten endpoints.
func BenchmarkChoose(b *testing.B) {
	p := must.OK(New(&Config{Map: Mapping{{From: netip.MustParsePrefix("10.96.0.0/12")}}}))(b)
	s := state(service(), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	table := must.OK(servicemodel.Resolve(nil, s))(b)
	must.OK(p.Commit(b.Context(), servicemodel.Diff(nil, table)))(b)
	c := &conn{protocol: servicemodel.TCP, src: netip.MustParseAddrPort("192.0.2.1:4000"),
		dst: netip.AddrPortFrom(webIP, 80)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.choose(c, nil); err != nil {
			b.Fatal(err)
		}
		p.leave(c, false)
	}
}
