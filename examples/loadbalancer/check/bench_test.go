package check_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kernlb/kernlb/examples/loadbalancer/check"
)

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
