package main

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	served "github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// The page of an engine is read over TCP and over a Unix socket.
func TestRecentOfAPage(t *testing.T) {
	t.Parallel()
	engine := dataplane.New(memory.New(nil), nil)
	handler := served.New(engine, nil)
	t.Cleanup(func() { handler.Close() })
	must.OK(engine.Apply(t.Context(), servicemodel.State{}.
		WithNode(servicemodel.Node{Name: "n1"}).
		WithService(web(1))))(t)
	tcp := httptest.NewServer(handler)
	t.Cleanup(tcp.Close)
	path := filepath.Join(t.TempDir(), "page")
	l := must.OK(net.Listen("unix", path))(t)
	unix := &http.Server{Handler: handler}
	go unix.Serve(l)
	t.Cleanup(func() { unix.Close() })
	for _, where := range []string{tcp.URL, tcp.URL + "/", "unix:" + path} {
		p := must.OK(newPage(where))(t)
		p.client.Timeout = time.Minute // the test is about what a server answers, not how soon
		r := p.recent(t.Context())
		require.Empty(t, r.why)
		require.Len(t, r.Events, 1)
		require.Contains(t, r.Events[0].line(), "applied  1 added, 0 changed, 0 removed  in ")
		require.Regexp(t, "^last 1 applies: median .*s, slowest .*s$", r.latency())
		require.NotEmpty(t, r.about(name(1)))
		require.Empty(t, r.about(name(2)))
	}
}

func TestWhereNoPageIs(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	text := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("hello"))
	}))
	t.Cleanup(text.Close)
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write([]byte(`{"events":[{"text":"`))
		for err == nil {
			_, err = w.Write(bytes.Repeat([]byte("x"), 1<<16))
		}
	}))
	t.Cleanup(endless.Close)
	for where, want := range map[string]string{"": "-page is empty",
		endless.URL:     "is no page of kernlb: unexpected EOF",
		other.URL:       "is no page of kernlb: 404",
		text.URL:        "is no page of kernlb: invalid character",
		"unix:/nowhere": "no page at unix:/nowhere: kernlb watch -listen serves one"} {
		p := must.OK(newPage(where))(t)
		p.client.Timeout = time.Minute // the test is about what a server answers, not how soon
		r := p.recent(t.Context())
		require.Contains(t, r.why, want)
	}
}
