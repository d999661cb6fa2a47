package checks_test

import (
	"cmp"
	"context"
	"encoding/binary"
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
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/checks"
)

// long is longer than any check of these tests takes.
const long = time.Minute

// ask asks a server once.
func ask(t *testing.T, addr net.Addr, c checks.Check) error {
	t.Helper()
	require.NoError(t, c.Validate())
	if c.Timeout == 0 {
		c.Timeout = long
	}
	return ok(checks.New(nil))(t).Ask(t.Context(), c.Target(addrOf(addr)))
}

func addrOf(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

func listen(t testing.TB, at string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Skip("no such address: ", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestTCP(t *testing.T) {
	t.Parallel()
	l := listen(t, "127.0.0.1:0")
	require.NoError(t, ask(t, l.Addr(), checks.Check{Type: checks.TCP}))
	require.ErrorContains(t, ok(checks.New(nil))(t).Ask(t.Context(),
		checks.Check{Type: "ping"}.Target(addrOf(l.Addr()))), "check: type: ping: must be")
	require.NoError(t, l.Close())
	require.ErrorContains(t, ask(t, l.Addr(), checks.Check{Type: checks.TCP}), "refused")
}

// A check uses the configured source and destination addresses.
func TestSourceAndDestination(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs a system where all of 127.0.0.0/8 is local")
	}
	elsewhere := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9), Port: 1}
	c := checks.Check{Type: checks.TCP, Source: netip.MustParseAddr("127.0.0.2"),
		Address: netip.MustParseAddr("127.0.0.1")}
	l := listen(t, "127.0.0.1:0")
	c.Port = addrOf(l.Addr()).Port()
	require.NoError(t, ask(t, elsewhere, c))
	conn := ok(l.Accept())(t)
	defer conn.Close()
	require.Equal(t, "127.0.0.2", addrOf(conn.RemoteAddr()).Addr().String())

	from := make(chan string, 1)
	c.Type, c.Payload, c.Reply = checks.UDP, "ping", true
	c.Port = addrOf(serveUDP(t, func(sent, source string) string {
		from <- source
		return sent
	})).Port()
	require.NoError(t, ask(t, elsewhere, c))
	require.Contains(t, <-from, "127.0.0.2:")
}

// Addresses of checks may have a zone, as link-local addresses must.
func TestZones(t *testing.T) {
	t.Parallel()
	plain := &httptest.Server{Listener: listen(t, "[::1]:0"),
		Config: &http.Server{Handler: http.HandlerFunc(serveWeb)}}
	plain.Start()
	defer plain.Close()
	zoned := netip.MustParseAddr("::1%lo")
	if runtime.GOOS != "linux" {
		zoned = zoned.WithZone("1")
	}
	for kind, l := range map[checks.Type]net.Addr{checks.TCP: plain.Listener.Addr(),
		checks.HTTP: plain.Listener.Addr(), checks.GRPC: serveGRPC(t, "[::1]:0", nil)} {
		require.NoError(t, ask(t, l, checks.Check{Type: kind, Address: zoned, Source: zoned}), kind)
	}
}

// serveWeb answers like the health page of a web server.
func serveWeb(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/moved":
		http.Redirect(w, r, "/", http.StatusFound)
	case "/broken":
		http.Error(w, "broken", http.StatusInternalServerError)
	case "/hangs":
		<-r.Context().Done()
	case "/alone":
		if !r.Close || r.UserAgent() != "kernlb-checks" {
			w.WriteHeader(http.StatusForbidden)
		}
	case "/method":
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusNoContent)
		}
	default:
		fmt.Fprint(w, r.URL.RequestURI(), " of ", r.Host)
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(serveWeb))
	defer s.Close()
	for _, c := range []struct {
		name  string
		check checks.Check
		want  string
	}{
		{"anything from 200 on", checks.Check{}, ""},
		{"a path with a query", checks.Check{Path: "/a?b=c", Host: "example.com",
			Digest: "d31143c45a1eceebf4e34c7ecbf86a70"}, ""},
		{"a path that looks like a host", checks.Check{Path: "//a%2Fb", Host: "example.com:8",
			Digest: "89722e13dc18ad2c5fb9d432fc53958d"}, ""},
		{"another method", checks.Check{Path: "/method", Method: "HEAD", Status: "204"}, ""},
		{"a request that names itself, and is the only one", checks.Check{Path: "/alone"}, ""},
		{"an error", checks.Check{Path: "/broken"}, "status 500"},
		{"an error that is right", checks.Check{Path: "/broken", Status: "404 500-503"}, ""},
		{"a redirection is not followed", checks.Check{Path: "/moved"}, "status 302"},
		{"another body", checks.Check{Digest: strings.Repeat("0", 32)}, "digest"},
		{"silence", checks.Check{Path: "/hangs", Timeout: time.Millisecond}, "no answer in time"},
		{"TLS where there is none", checks.Check{Type: checks.HTTPS}, "TLS handshake"},
	} {
		if c.check.Type == "" {
			c.check.Type = checks.HTTP
		}
		err := ask(t, s.Listener.Addr(), c.check)
		if c.want == "" {
			require.NoError(t, err, c.name)
		} else {
			require.ErrorContains(t, err, c.want, c.name)
		}
	}
}

// A check that times out says so, whichever step its time ends in, and whoever notices first.
func TestTimeoutInEachStep(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(serveWeb))
	defer s.Close()
	errs := make(chan error, 500)
	for range cap(errs) { // at once, so that some of them time out before they are connected
		go func() {
			errs <- ask(t, s.Listener.Addr(), checks.Check{Type: checks.HTTP, Path: "/hangs",
				Timeout: time.Millisecond})
		}()
	}
	for range cap(errs) {
		assert.ErrorContains(t, <-errs, "no answer in time")
	}
}

// quiet is an unstarted server that logs no failed handshakes.
func quiet(h http.HandlerFunc) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	return s
}

// A certificate is verified only on request.
func TestHTTPS(t *testing.T) {
	t.Parallel()
	s := quiet(serveWeb)
	s.StartTLS()
	defer s.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: s.Certificate().Raw}), 0o600))
	c := checks.Check{Type: checks.HTTPS}
	require.NoError(t, ask(t, s.Listener.Addr(), c))
	c.Verify = true
	require.ErrorContains(t, ask(t, s.Listener.Addr(), c), "unknown authority")
	withRoots := ok(checks.New(&checks.Config{
		TLS: s.Client().Transport.(*http.Transport).TLSClientConfig}))(t)
	require.NoError(t, withRoots.Ask(t.Context(), c.Target(addrOf(s.Listener.Addr()))))
	c.CA = file
	require.NoError(t, ask(t, s.Listener.Addr(), c))
	for _, c.Host = range []string{"example.com", "example.com:443"} { // name in the certificate
		require.NoError(t, ask(t, s.Listener.Addr(), c))
	}
	c.Host = "example.org"
	require.ErrorContains(t, ask(t, s.Listener.Addr(), c), "not example.org")
	c.ServerName = "example.com"
	require.NoError(t, ask(t, s.Listener.Addr(), c))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.EqualError(t, c.Validate(), "check: ca: "+file+": no certificate in it")
	require.NoError(t, os.Remove(file))
	require.ErrorIs(t, ok(checks.New(nil))(t).Ask(t.Context(),
		c.Target(addrOf(s.Listener.Addr()))), os.ErrNotExist)
}

// serveUDP answers datagrams, unless the answer is empty.
func serveUDP(t testing.TB, answer func(sent, from string) string) net.Addr {
	t.Helper()
	conn := ok(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if a := answer(string(b[:n]), from.String()); a != "" {
				_, _ = conn.WriteTo([]byte(a), from)
			}
		}
	}()

	return conn.LocalAddr()
}

func TestUDP(t *testing.T) {
	t.Parallel()
	echo := serveUDP(t, func(sent, _ string) string { return sent + "\x00, sir" })
	silent := serveUDP(t, func(string, string) string { return "" })
	c := checks.Check{Type: checks.UDP, Payload: "\x01ping"}
	require.NoError(t, ask(t, echo, c))
	c.Answer = "\x01ping\x00"
	require.NoError(t, ask(t, echo, c))
	c.Answer = "pong"
	require.EqualError(t, ask(t, echo, c), `the answer begins with "\x01ping\x00, sir"`)

	c = checks.Check{Type: checks.UDP, Timeout: 200 * time.Millisecond}
	require.NoError(t, ask(t, silent, c), "silence is right, unless an answer is required")
	for _, c.Answer = range []string{"pong", ""} {
		c.Reply = c.Answer == ""
		require.ErrorContains(t, ask(t, silent, c), "no answer in time")
	}

	c.Reply, c.Timeout = false, long
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	require.ErrorIs(t, ok(checks.New(nil))(t).Ask(ctx, c.Target(addrOf(silent))),
		context.Canceled)

	conn := ok(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	require.NoError(t, conn.Close())
	require.Error(t, ask(t, conn.LocalAddr(), c), "nobody listens there")
}

// answerGRPC answers a request to a health service as a server for the services "web" and "" does.
func answerGRPC(w http.ResponseWriter, r *http.Request) {
	frame, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/grpc")
	trailers := func(status, message string) {
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", status)
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", message)
	}

	if r.Method != http.MethodPost || r.URL.Path != "/grpc.health.v1.Health/Check" ||
		r.Header.Get("Content-Type") != "application/grpc" || r.Header.Get("TE") != "trailers" ||
		len(frame) < 5 || binary.BigEndian.Uint32(frame[1:]) != uint32(len(frame)-5) {
		w.Header().Set("Grpc-Status", "3")
		return
	}

	service := ""
	if len(frame) > 5 && frame[5] == 10 && int(frame[6]) == len(frame)-7 {
		service = string(frame[7:])
	}
	answers := map[string]string{
		"": "\x08\x01", "web": "\x08\x01", "starting": "", "stopping": "\x08\x02",
		"odd": "\x08\x09", "cut": "\x08", "zero": "\x00", "new": "\x08\x01\x12\x03abc",
	}
	message, known := answers[service]
	switch {
	case service == "hangs":
		<-r.Context().Done()
	case service == "absent":
		w.WriteHeader(http.StatusBadGateway)
	case service == "bare":
		trailers("0", "")
	case service == "silent":
	case service == "refused": // only headers
		w.Header().Set("Grpc-Status", "7")
		w.Header().Set("Grpc-Message", "not%20you")
	case !known:
		trailers("5", "unknown%20service")
	default:
		_, _ = w.Write(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))))
		_, _ = io.WriteString(w, message)
		trailers("0", "")
	}
}

// serveGRPC is a server with a health service, over TLS if there is a server with certificates.
func serveGRPC(t testing.TB, at string, secure *httptest.Server) net.Addr {
	t.Helper()
	s := secure
	if s == nil {
		s = quiet(answerGRPC)
		require.NoError(t, s.Listener.Close())
		s.Listener = listen(t, at)
		s.Config.Protocols = &http.Protocols{}
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
	} else {
		s.EnableHTTP2 = true
		s.StartTLS()
	}

	t.Cleanup(s.Close)
	return s.Listener.Addr()
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	for secure, addr := range map[bool]net.Addr{false: serveGRPC(t, "127.0.0.1:0", nil),
		true: serveGRPC(t, "", quiet(answerGRPC))} {
		for service, want := range map[string]string{
			"": "", "web": "", "new": "",
			"starting": "the server says UNKNOWN",
			"stopping": "the server says NOT_SERVING",
			"odd":      "the server says status 9",
			"other":    "gRPC status 5: unknown service",
			"refused":  "gRPC status 7: not you",
			"silent":   "gRPC status is missing: ",
			"absent":   "status 502",
			"bare":     "the answer is no HealthCheckResponse",
			"cut":      "the answer is no HealthCheckResponse",
			"zero":     "the answer is no HealthCheckResponse",
		} {
			c := checks.Check{Type: checks.GRPC, TLS: secure, Service: service}
			if err := ask(t, addr, c); want == "" {
				require.NoError(t, err, service)
			} else {
				require.EqualError(t, err, want, service)
			}
		}

		c := checks.Check{Type: checks.GRPC, TLS: secure, Service: "hangs",
			Timeout: 20 * time.Millisecond}
		require.ErrorContains(t, ask(t, addr, c), "no answer in time")
		c = checks.Check{Type: checks.GRPC, TLS: !secure, Timeout: time.Second}
		require.Error(t, ask(t, addr, c), "the other kind of server")
	}

	require.Error(t, ask(t, listen(t, "127.0.0.1:0").Addr(), checks.Check{Type: checks.GRPC,
		Timeout: 10 * time.Millisecond}), "it accepts, and says nothing")
}

func TestAnEndedContextEndsACheck(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, kind := range []checks.Type{checks.TCP, checks.HTTP, checks.GRPC, checks.UDP} {
		c := checks.Check{Type: kind, Timeout: long}
		require.ErrorContains(t, ok(checks.New(nil))(t).Ask(ctx,
			c.Target(addrOf(listen(t, "127.0.0.1:0").Addr()))), "canceled")
	}
}

// After a check, its connection is closed, even if the check failed.
func TestConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	for _, kind := range []checks.Type{checks.HTTP, checks.GRPC} {
		open := make(chan http.ConnState, 100)
		s := quiet(func(w http.ResponseWriter, r *http.Request) {
			if kind == checks.GRPC {
				answerGRPC(w, r)
			} else {
				serveWeb(w, r)
			}
		})
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) { open <- state }
		s.Config.Protocols = &http.Protocols{}
		s.Config.Protocols.SetHTTP1(kind == checks.HTTP)
		s.Config.Protocols.SetUnencryptedHTTP2(kind == checks.GRPC)
		s.Start()
		defer s.Close()
		for _, c := range []checks.Check{{}, {Path: "/broken", Service: "stopping"},
			{Path: "/hangs", Service: "hangs", Timeout: time.Second}} {
			c.Type = kind
			if kind == checks.HTTP {
				c.Service = ""
			} else {
				c.Path = ""
			}

			_ = ask(t, s.Listener.Addr(), c)
			for <-open != http.StateClosed { // the test ends when the connection is closed
			}
		}
	}
}

func TestWrongFieldsAreNamed(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]checks.Check{
		"type: ping: must be tcp, http, https, grpc or udp": {Type: "ping"},
		"interval: -1s: must be at least 1ms":               {Interval: -time.Second, Jitter: -1},
		"timeout: 1µs: must be at least 1ms":                {Timeout: time.Microsecond},
		"retry: 1µs: must be at least 1ms":                  {Retry: time.Microsecond},
		"jitter: 3s: must be at most the interval":          {Jitter: 3 * time.Second},
		"rise: -1: must not be negative":                    {Rise: -1},
		"fall: -1: must not be negative":                    {Fall: -1},

		"method: GET: is only for http and https": {Method: "GET"},
		"method: get /: must be the name of a method in capitals": {Type: "http",
			Method: "get /"},
		"path: /: is only for http and https":                  {Type: "grpc", Path: "/"},
		`path: "a" must begin with /`:                          {Type: "http", Path: "a"},
		`path: invalid URL escape "%zz"`:                       {Type: "https", Path: "/a%zz"},
		"host: a: is only for http, https and grpc":            {Type: "udp", Host: "a"},
		"host: a b/c: must be the name of a host":              {Type: "grpc", Host: "a b/c"},
		"status: 200: is only for http and https":              {Status: "200"},
		`status: "99" is not a status code or a range of them`: {Type: "http", Status: "99"},
		`status: "300-200" is not a status code or a range of them`: {Type: "http",
			Status: "300-200"},
		"digest: abc: must be an MD5 digest in hex": {Type: "http", Digest: "abc"},
		"service: a: is only for grpc":              {Type: "http", Service: "a"},

		"tls: is only for grpc; for http use the type https":  {Type: "http", TLS: true},
		"serverName: a: is only for https, and grpc with tls": {Type: "grpc", ServerName: "a"},
		"verify: is only for https, and grpc with tls":        {Type: "grpc", Verify: true},
		"ca: /ca.pem: needs verify: true":                     {Type: "https", CA: "/ca.pem"},

		"payload: is only for udp": {Payload: "a"},
		"reply: is only for udp":   {Reply: true},
		"answer: is only for udp":  {Answer: "a"},
	} {
		c.Type = cmp.Or(c.Type, checks.TCP)
		require.EqualError(t, c.Validate(), "check: "+want)
	}
}

// The cost of one check, including the server's part.
func BenchmarkAsk(b *testing.B) {
	plain := httptest.NewServer(http.HandlerFunc(serveWeb))
	defer plain.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(serveWeb))
	defer secure.Close()
	m := ok(checks.New(nil))(b)
	for kind, addr := range map[checks.Type]net.Addr{checks.TCP: plain.Listener.Addr(),
		checks.HTTP: plain.Listener.Addr(), checks.HTTPS: secure.Listener.Addr(),
		checks.GRPC: serveGRPC(b, "127.0.0.1:0", nil),
		checks.UDP:  serveUDP(b, func(sent, _ string) string { return sent })} {
		b.Run(string(kind), func(b *testing.B) {
			target := checks.Check{Type: kind, Timeout: long, Payload: "ping"}.Target(addrOf(addr))
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Ask(b.Context(), target); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
