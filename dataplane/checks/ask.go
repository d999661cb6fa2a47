package checks

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
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/threadns"
)

// maxBody limits the bytes of a body that are read for its digest.
const maxBody = 16 << 20

// errSilent is the cancellation cause of a check that timed out.
var errSilent = errors.New("no answer in time")

// Ask checks a target once, within its timeout, in addition to the checks of Run. Nil means that
// the target passed. Ask does not change the target's state.
func (m *Monitor) Ask(ctx context.Context, t Target) error {
	theirs, limited := ctx.Deadline()
	ctx, cancel := context.WithTimeoutCause(ctx, t.check.Timeout, errSilent)
	defer cancel()

	if m.cfg.Ask != nil {
		return m.cfg.Ask(ctx, t)
	}
	network := "tcp"
	if t.check.Type == UDP {
		network = "udp"
	}
	// A socket may notice the deadline before the context does, which has no cause yet then.
	ours, _ := ctx.Deadline()
	ourTimeout := !limited || ours.Before(theirs)
	late := func(err error) bool {
		return ourTimeout && (errors.Is(err, context.DeadlineExceeded) ||
			errors.Is(err, os.ErrDeadlineExceeded))
	}

	conn, err := m.dial(ctx, network, t)
	if late(err) {
		return fmt.Errorf("%w: %w", errSilent, err)
	} else if err != nil {
		return err
	}

	defer conn.Close()
	switch t.check.Type {
	case TCP:
	case HTTP, HTTPS:
		err = m.askHTTP(ctx, conn, t)
	case GRPC:
		err = m.askGRPC(ctx, conn, t)
	case UDP:
		err = askUDP(ctx, conn, t.check)
	default:
		err = t.check.Validate()
	}

	if late(err) {
		return errSilent
	}
	return err
}

// dial opens a connection in the network namespace of the monitor.
func (m *Monitor) dial(ctx context.Context, network string, t Target) (conn net.Conn, err error) {
	dialer := &net.Dialer{KeepAlive: -1}
	if s := netip.AddrPortFrom(t.check.Source, 0); s.Addr().IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(s)
		if network == "udp" {
			dialer.LocalAddr = net.UDPAddrFromAddrPort(s)
		}
	}

	err = m.within(func() (err error) {
		conn, err = dialer.DialContext(ctx, network, t.addr.String())
		return err
	})
	return conn, err
}

// within calls a function in the network namespace of the monitor.
func (m *Monitor) within(do func() error) error {
	if m.cfg.NetNS == "" {
		return do()
	}
	ns, err := threadns.Open(m.cfg.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(do)
}

// tlsConfig returns the TLS configuration of a check with its defaults.
func (c Check) tlsConfig(base *tls.Config) (*tls.Config, error) {
	out := &tls.Config{}
	if base != nil {
		out = base.Clone()
	}
	out.ServerName, out.InsecureSkipVerify = c.ServerName, !c.Verify
	if c.CA == "" {
		return out, nil
	}
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, err
	}
	out.RootCAs = x509.NewCertPool()
	if !out.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in it", c.CA)
	}
	return out, nil
}

// request sends one request on a connection, and reads the answer. It follows no redirection.
func (m *Monitor) request(conn net.Conn, t Target, req *http.Request, p *http.Protocols,
	read func(*http.Response) error) error {
	transport := &http.Transport{DisableKeepAlives: true, Protocols: p,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	if t.check.secure() {
		var err error
		if transport.TLSClientConfig, err = t.check.tlsConfig(m.cfg.TLS); err != nil {
			return err
		}
	}

	defer transport.CloseIdleConnections()

	req.Host = t.check.Host
	req.Header.Set("User-Agent", "kernlb-checks")
	answer, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	return read(answer)
}

// askHTTP sends the request of an http or https check.
func (m *Monitor) askHTTP(ctx context.Context, conn net.Conn, t Target) error {
	u, err := t.check.uri()
	if err != nil {
		return err
	}
	u.Scheme, u.Host = string(t.check.Type), t.addr.String()
	req, err := http.NewRequestWithContext(ctx, t.check.Method, u.String(), nil)
	if err != nil {
		return err
	}
	right, err := parseStatus(t.check.Status)
	if err != nil {
		return err
	}
	p := &http.Protocols{}
	p.SetHTTP1(true)
	return m.request(conn, t, req, p, func(answer *http.Response) error {
		if !slices.ContainsFunc(right, func(c codes) bool {
			return c.first <= answer.StatusCode && answer.StatusCode <= c.last
		}) {
			return fmt.Errorf("status %d", answer.StatusCode)
		}

		if t.check.Digest == "" {
			return nil
		}

		hash := md5.New()
		if _, err := io.Copy(hash, io.LimitReader(answer.Body, maxBody)); err != nil {
			return fmt.Errorf("body: %w", err)
		}
		if got := hex.EncodeToString(hash.Sum(nil)); !strings.EqualFold(got, t.check.Digest) {
			return fmt.Errorf("the body has the digest %s", got)
		}
		return nil
	})
}

// maxQuoted limits the bytes of a wrong answer that an error quotes.
const maxQuoted = 64

// askUDP sends a datagram, and waits for the answer.
func askUDP(ctx context.Context, conn net.Conn, c Check) error {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write([]byte(c.Payload)); err != nil {
		return err
	}
	answer := make([]byte, max(maxQuoted, len(c.Answer)))
	n, err := conn.Read(answer)
	switch {
	case err == nil && strings.HasPrefix(string(answer[:n]), c.Answer):
		return nil
	case err == nil:
		return fmt.Errorf("the answer begins with %q", answer[:min(n, maxQuoted)])
	case ctx.Err() == nil:
		return err // such as an ICMP error
	case context.Cause(ctx) == errSilent && !c.Reply:
		return nil
	}

	return context.Cause(ctx)
}
