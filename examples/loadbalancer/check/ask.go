package check

import (
	"context"
	"crypto/md5"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// maxBody is how much of a body is read for its digest.
const maxBody = 16 << 20

// Ask asks a target once, within its timeout. Nil means that the answer was right.
func Ask(ctx context.Context, t Target) error {
	ctx, cancel := context.WithTimeout(ctx, t.Spec.Timeout)
	defer cancel()
	dialer := &net.Dialer{KeepAlive: -1}
	if t.Spec.Source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.Spec.Source.Addr, 0))
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", t.Addr.String())
	}
	switch t.Spec.Type {
	case TCP:
		conn, err := dial(ctx)
		if err != nil {
			return err
		}
		return conn.Close()
	case HTTP, HTTPS:
		return askHTTP(ctx, t, dial)
	case GRPC:
		return askGRPC(ctx, t, dial)
	}
	return fmt.Errorf("check of the type %q", t.Spec.Type)
}

// tlsConfig returns the TLS configuration of a check, or nil if it does not use TLS.
func (s Spec) tlsConfig() (*tls.Config, error) {
	if !s.secure() {
		return nil, nil
	}
	name := (&url.URL{Host: s.Host}).Hostname() // Host may have a port
	c := &tls.Config{ServerName: name, InsecureSkipVerify: !s.Verify}
	if s.CA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(s.CA)
	if err != nil {
		return nil, err
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in it", s.CA)
	}
	return c, nil
}

// askHTTP sends a request on a connection of its own.
func askHTTP(ctx context.Context, t Target,
	dial func(context.Context) (net.Conn, error)) error {
	secure, err := t.Spec.tlsConfig()
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: secure,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	defer transport.CloseIdleConnections()
	u, err := t.Spec.url(t.host())
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	req.Host = t.Spec.Host
	req.Header.Set("User-Agent", "kernlb-loadbalancer")
	answer, err := transport.RoundTrip(req) // unlike a client, it follows no redirection
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	right, err := parseStatus(t.Spec.Status)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(right, func(c codes) bool {
		return c.first <= answer.StatusCode && answer.StatusCode <= c.last
	}) {
		return fmt.Errorf("status %d", answer.StatusCode)
	}
	if t.Spec.Digest == "" {
		return nil
	}
	hash := md5.New()
	if _, err := io.Copy(hash, io.LimitReader(answer.Body, maxBody)); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); !strings.EqualFold(got, t.Spec.Digest) {
		return fmt.Errorf("the body has the digest %s", got)
	}
	return nil
}

// askGRPC asks the health service of a server (grpc.health.v1).
func askGRPC(ctx context.Context, t Target,
	dial func(context.Context) (net.Conn, error)) (err error) {
	secure, err := t.Spec.tlsConfig()
	if err != nil {
		return err
	}
	creds := insecure.NewCredentials()
	if secure != nil {
		creds = credentials.NewTLS(secure)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(creds),
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return dial(ctx)
		})}
	if t.Spec.Host != "" {
		options = append(options, grpc.WithAuthority(t.Spec.Host))
	}
	conn, err := grpc.NewClient("passthrough:///"+t.host(), options...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx,
		&healthpb.HealthCheckRequest{Service: t.Spec.Service})
	if err != nil {
		return err
	}
	if answer.Status != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("the server says %s", answer.Status)
	}
	return nil
}
