package check_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kernlb/kernlb/examples/loadbalancer/check"
)

// long is more than any check takes here: what is to succeed is not timed.
const long = time.Minute

func ask(t *testing.T, addr net.Addr, s check.Spec) error {
	t.Helper()
	require.Empty(t, s.Validate())
	if s.Timeout == 0 {
		s.Timeout = long
	}
	return check.Ask(t.Context(), s.Target(addr.(*net.TCPAddr).AddrPort()))
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestTCP(t *testing.T) {
	t.Parallel()
	l := listen(t)
	require.NoError(t, ask(t, l.Addr(), check.Spec{Type: check.TCP}))
	require.NoError(t, l.Close())
	require.ErrorContains(t, ask(t, l.Addr(), check.Spec{Type: check.TCP}), "refused")
}

// A check comes from the source address that it was told, and goes where it was told.
func TestSourceAndDestination(t *testing.T) {
	t.Parallel()
	l := listen(t)
	s := check.Spec{Type: check.TCP, Source: check.Addr{Addr: netip.MustParseAddr("127.0.0.2")},
		Address: check.Addr{Addr: netip.MustParseAddr("127.0.0.1")},
		Port:    uint16(l.Addr().(*net.TCPAddr).Port)}
	elsewhere := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9), Port: 1}
	require.NoError(t, ask(t, elsewhere, s))
	conn, err := l.Accept()
	require.NoError(t, err)
	defer conn.Close()
	require.Equal(t, "127.0.0.2", conn.RemoteAddr().(*net.TCPAddr).IP.String())
}

// Addresses of checks may have a zone, as link-local addresses must.
func TestZones(t *testing.T) {
	t.Parallel()
	on := func() net.Listener {
		l, err := net.Listen("tcp", "[::1]:0")
		if err != nil {
			t.Skip("no IPv6: ", err)
		}
		return l
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	l := on()
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	plain := &httptest.Server{Listener: on(), Config: &http.Server{Handler: http.HandlerFunc(web)}}
	plain.Start()
	defer plain.Close()
	zoned := check.Addr{Addr: netip.MustParseAddr("::1%lo")}
	for kind, l := range map[string]net.Listener{check.TCP: plain.Listener,
		check.HTTP: plain.Listener, check.GRPC: l} {
		s := check.Spec{Type: kind, Address: zoned, Source: zoned}
		require.NoError(t, ask(t, l.Addr(), s), kind)
	}
}

// web answers as the health of a web server might.
func web(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/moved":
		http.Redirect(w, r, "/", http.StatusFound)
	case "/broken":
		http.Error(w, "broken", http.StatusInternalServerError)
	case "/hangs":
		<-r.Context().Done()
	default:
		fmt.Fprint(w, r.URL.RequestURI(), " of ", r.Host)
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(web))
	defer s.Close()
	for _, c := range []struct {
		name string
		spec check.Spec
		want string
	}{
		{"anything from 200 on", check.Spec{}, ""},
		{"a path with a query", check.Spec{Path: "/a?b=c", Host: "example.com",
			Digest: "d31143c45a1eceebf4e34c7ecbf86a70"}, ""},
		{"an error", check.Spec{Path: "/broken"}, "status 500"},
		{"an error that is right", check.Spec{Path: "/broken", Status: "404 500-503"}, ""},
		{"a redirection is not followed", check.Spec{Path: "/moved"}, "status 302"},
		{"another body", check.Spec{Digest: "00000000000000000000000000000000"}, "digest"},
		{"no answer in time", check.Spec{Path: "/hangs", Timeout: time.Millisecond}, "deadline"},
		{"TLS where there is none", check.Spec{Type: check.HTTPS}, "TLS handshake"},
	} {
		if c.spec.Type == "" {
			c.spec.Type = check.HTTP
		}
		err := ask(t, s.Listener.Addr(), c.spec)
		if c.want == "" {
			require.NoError(t, err, c.name)
		} else {
			require.ErrorContains(t, err, c.want, c.name)
		}
	}
}

// A certificate is verified only if that is asked for.
func TestHTTPS(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(web))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that fail
	s.StartTLS()
	defer s.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: s.Certificate().Raw}), 0o600))
	spec := check.Spec{Type: check.HTTPS}
	require.NoError(t, ask(t, s.Listener.Addr(), spec))
	spec.Verify = true
	require.ErrorContains(t, ask(t, s.Listener.Addr(), spec), "unknown authority")
	spec.CA = file
	require.NoError(t, ask(t, s.Listener.Addr(), spec))
	for _, spec.Host = range []string{"example.com", "example.com:443"} { // it is for that name
		require.NoError(t, ask(t, s.Listener.Addr(), spec))
	}
	spec.Host = "example.org"
	require.ErrorContains(t, ask(t, s.Listener.Addr(), spec), "not example.org")
	require.NoError(t, os.Remove(file))
	require.ErrorIs(t, spec.Validate()[0], os.ErrNotExist)
	require.ErrorIs(t, check.Ask(t.Context(), spec.Target(netip.AddrPort{})), os.ErrNotExist)
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	certificate := httptest.NewTLSServer(nil)
	defer certificate.Close()
	for _, secure := range []bool{false, true} {
		var options []grpc.ServerOption
		if secure {
			options = append(options, grpc.Creds(credentials.NewTLS(certificate.TLS.Clone())))
		}
		server, status := grpc.NewServer(options...), health.NewServer()
		healthpb.RegisterHealthServer(server, status)
		l := listen(t)
		go func() { _ = server.Serve(l) }()
		defer server.Stop()
		spec := check.Spec{Type: check.GRPC, TLS: secure}
		require.NoError(t, ask(t, l.Addr(), spec))
		spec.Service = "web"
		require.ErrorContains(t, ask(t, l.Addr(), spec), "NotFound")
		status.SetServingStatus("web", healthpb.HealthCheckResponse_SERVING)
		require.NoError(t, ask(t, l.Addr(), spec))
		status.SetServingStatus("web", healthpb.HealthCheckResponse_NOT_SERVING)
		require.ErrorContains(t, ask(t, l.Addr(), spec), "NOT_SERVING")
	}
	require.Error(t, ask(t, listen(t).Addr(), check.Spec{Type: check.GRPC,
		Timeout: 10 * time.Millisecond}), "it accepts, and says nothing")
}

func TestAnEndedContextEndsACheck(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	target := check.Spec{Type: check.TCP, Timeout: long}.Target(
		listen(t).Addr().(*net.TCPAddr).AddrPort())
	require.ErrorContains(t, check.Ask(ctx, target), "canceled")
}

// What one check costs, the server's part included.
func BenchmarkAsk(b *testing.B) {
	plain := httptest.NewServer(http.HandlerFunc(web))
	defer plain.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(web))
	defer secure.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	for _, c := range []struct {
		kind string
		addr net.Addr
	}{{check.TCP, plain.Listener.Addr()}, {check.HTTP, plain.Listener.Addr()},
		{check.HTTPS, secure.Listener.Addr()}, {check.GRPC, l.Addr()}} {
		b.Run(c.kind, func(b *testing.B) {
			target := check.Spec{Type: c.kind, Timeout: long}.Target(
				c.addr.(*net.TCPAddr).AddrPort())
			b.ReportAllocs()
			for b.Loop() {
				if err := check.Ask(b.Context(), target); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
