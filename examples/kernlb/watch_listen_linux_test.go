package main

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/internal/test/servetest"
)

var listening = regexp.MustCompile(`msg=listening address=http://(\S+)`)

// address waits until the program listens, and returns the address.
func (w *watched) address() string {
	w.t.Helper()
	w.logs("msg=listening")
	return listening.FindStringSubmatch(w.log.String())[1]
}

// get requests a path of a program's page in a namespace, with a Host header, and returns the code
// and the body. The path may have POST before it.
func get(t *testing.T, ns *netnstest.NS, at, host, path string) (code int, body string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			return err
		}
		defer conn.Close()
		method, path, post := strings.Cut(path, " ")
		if !post {
			method, path = http.MethodGet, method
		}
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+host+path, nil)
		if err != nil {
			return err
		}
		r.Close = true
		if err := r.Write(conn); err != nil {
			return err
		}
		a, err := http.ReadResponse(bufio.NewReader(conn), r)
		if err != nil {
			return err
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		code, body = a.StatusCode, string(text)
		return err
	}))
	return code, body
}

func TestWatchServesAPage(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "-listen", "127.0.0.1:0")
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.start()
	at := w.address()
	require.Eventually(t, func() bool {
		_, body := get(t, w.ns, at, at, "/services.json")
		return regexp.MustCompile(`"condition": "ok"`).MatchString(body)
	}, 10*time.Second, 20*time.Millisecond)
	for path, want := range map[string]string{
		"/":                       "default/a",
		"/service?name=default/a": "10.96.0.1:80/tcp",
		"/recent":                 "10.96.0.1:80/tcp",
		"/conntrack":              " connections",
		"/healthz":                `"nodeEligible":true`,
		"/livez":                  `"healthy":true`,
		"/trace?from=127.0.0.1&to=10.96.0.1:80/tcp": "127.0.0.1 is an address of this node",
	} {
		code, body := get(t, w.ns, at, at, path)
		require.Equal(t, http.StatusOK, code, path)
		require.Contains(t, body, want, path)
	}
	code, body := get(t, w.ns, at, at, "/service?name=default/a&counters=1")
	require.Equal(t, http.StatusNotFound, code)
	require.Contains(t, body, "counters are off")
	done(t, w.ns, "", "count")
	code, _ = get(t, w.ns, at, at, "/service?name=default/a&counters=1")
	require.Equal(t, http.StatusOK, code)
	code, _ = get(t, w.ns, at, "evil.example", "/")
	require.Equal(t, http.StatusMisdirectedRequest, code)
	w.halt()
}

func TestWatchListensToOthersIfAskedTo(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "-listen", "0.0.0.0:0", "-listen-anywhere")
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.start()
	_, port, err := net.SplitHostPort(w.address())
	require.NoError(t, err)
	code, _ := get(t, w.ns, "127.0.0.1:"+port, "node.example", "/")
	require.Equal(t, http.StatusOK, code)
	fails(t, w.ns, "", exitFailed, "-listen: listen tcp 127.0.0.1:"+port+": bind: address "+
		"already in use", strings.Join(w.args, " ")+" -listen 127.0.0.1:"+port)
	w.halt()
}

func TestHostileClientsOfThePage(t *testing.T) {
	t.Parallel()
	w := &watcher{log: slog.New(slog.DiscardHandler)}
	shown := page.New(nil, nil)
	servetest.Hostile(t, "/", maxConns, func(l net.Listener) func() {
		return w.serve(l, page.Loopback(shown))
	})
}
