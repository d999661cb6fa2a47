package main

import (
	"net"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/internal/test/must"
)

// Checks understand the health service of gRPC's own server.
func TestRealServersOfGRPC(t *testing.T) {
	t.Parallel()
	certificate := httptest.NewTLSServer(nil)
	defer certificate.Close()
	m := must.OK(checks.New(nil))(t)
	for _, secure := range []bool{false, true} {
		var options []grpc.ServerOption
		if secure {
			options = append(options, grpc.Creds(credentials.NewTLS(certificate.TLS.Clone())))
		}
		server, status := grpc.NewServer(options...), health.NewServer()
		healthpb.RegisterHealthServer(server, status)
		l := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
		go func() { _ = server.Serve(l) }()
		defer server.Stop()
		c := checks.Check{Type: checks.GRPC, TLS: secure, Timeout: time.Minute}
		ask := func() error {
			return m.Ask(t.Context(), c.Target(netip.MustParseAddrPort(l.Addr().String())))
		}
		require.NoError(t, ask())
		c.Service = "web"
		require.EqualError(t, ask(), "gRPC status 5: unknown service")
		status.SetServingStatus("web", healthpb.HealthCheckResponse_SERVING)
		require.NoError(t, ask())
		status.SetServingStatus("web", healthpb.HealthCheckResponse_NOT_SERVING)
		require.EqualError(t, ask(), "the server says NOT_SERVING")
	}

	empty := grpc.NewServer()
	l := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	go func() { _ = empty.Serve(l) }()
	defer empty.Stop()
	require.EqualError(t, m.Ask(t.Context(), checks.Check{Type: checks.GRPC, Timeout: time.Minute}.
		Target(netip.MustParseAddrPort(l.Addr().String()))),
		"gRPC status 12: unknown service grpc.health.v1.Health")
}
