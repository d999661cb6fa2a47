package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/promised"
	"github.com/kernlb/kernlb/servicemodel"
)

const web = `{"service": {"name": "default/web",
	"clusterIPs": ["10.96.0.10"], "ports": [{"protocol": "tcp", "port": 80}]},
	"endpoints": [{"addr": "10.244.0.1", "condition": "ready",
		"ports": [{"protocol": "tcp", "port": 8080}]}]}`

// running is a controller that runs on a kernel in memory.
type running struct {
	*controller
	server *httptest.Server
	stop   func()
}

func startOn(t *testing.T, k *memory.Kernel, file string, removes int) *running {
	t.Helper()
	b := memory.New(k)
	b.Refuse(func(c *servicemodel.ChangeSet) error {
		for _, f := range c.Frontends {
			if f.New != nil && f.New.Key.Port == 81 {
				return &backends.UnsupportedError{Backend: "memory", Service: f.New.Service.Name,
					Field: "ports[0].port", Value: "81"}
			}
		}
		return nil
	})
	c, err := open(file, removes, b, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.engine.Run(ctx, nil) }()
	server := httptest.NewServer(c.routes())
	r := &running{c, server, func() { cancel(); <-ended; server.Close() }}
	t.Cleanup(func() {
		cancel()
		server.Close()
	})
	return r
}

// ask sends a request, and returns the code and the text of the answer.
func (r *running) ask(t *testing.T, method, path, body string) (code int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.server.URL+path,
		strings.NewReader(body))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(data)
}

func TestServicesAreDeclared(t *testing.T) {
	t.Parallel()
	k := &memory.Kernel{}
	file := filepath.Join(t.TempDir(), "state.json")
	c := startOn(t, k, file, 9)
	for _, step := range []struct{ method, path, body, want string }{
		{"PUT", "/services/default/web", web,
			`{"conflicts":null,"pending":false,"refused":null,"warnings":null}`},
		{"PUT", "/services/default/web", strings.Replace(web, ": 80}", ": 81}", 1),
			`"field":"ports[0].port"`},
		{"PUT", "/services/default/web", strings.Replace(web, `"ready"`, `"not-ready"`, 1),
			"none ready"},
		{"PUT", "/services/default/web", strings.Replace(web, "port", "prot", 1),
			`"field":"prots"`},
		{"PUT", "/services/default/other", web, "is not that of the URL"},
		{"PUT", "/services/default/web", "{}", "is not that of the URL"},
		{"PUT", "/services/default/web", strings.Replace(web, "10.96.0.10", "10.96.0", 1),
			`"field":"clusterIPs[0]"`},
		{"PUT", "/services/default/zoo", strings.Replace(web, "default/web", "default/zoo", 1),
			`"loser":{"name":"default/zoo"`},
		{"DELETE", "/services/default/zoo", "", `"conflicts":null`},
		{"GET", "/services", "", "10.96.0.10"},
		{"GET", "/status", "", `"applied":`},
	} {
		_, text := c.ask(t, step.method, step.path, step.body)
		require.Contains(t, text, step.want)
	}
	require.Equal(t, 1, k.Table().Len())

	// the next process serves the same, even if its kernel was flushed
	want := c.state
	c.stop()
	k = &memory.Kernel{}
	c = startOn(t, k, file, 9)
	require.Equal(t, want, c.state)
	code, _ := c.ask(t, "DELETE", "/services/default/nosuch", "")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, 1, k.Table().Len())
	code, _ = c.ask(t, "DELETE", "/services/default/web", "")
	require.Equal(t, http.StatusOK, code)
	require.Zero(t, k.Table().Len())
}

// After a refused definition, the last good definition stays in the kernel, even after a restart.
func TestARefusedDefinitionOutlivesTheProgram(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "state.json")
	k := &memory.Kernel{}
	c := startOn(t, k, file, 9)
	_, text := c.ask(t, "PUT", "/services/default/web", web)
	require.Contains(t, text, `"refused":null`)
	_, text = c.ask(t, "PUT", "/services/default/web", strings.Replace(web, ": 80}", ": 81}", 1))
	require.Contains(t, text, `"field":"ports[0].port"`)
	c.stop()

	k = &memory.Kernel{}
	c = startOn(t, k, file, 9)
	require.NoError(t, c.engine.Wait(t.Context(), c.engine.Status().Wanted))
	for f := range k.Table().Frontends() {
		require.EqualValues(t, 80, f.Key.Port)
	}
	require.Equal(t, 1, k.Table().Len())
}

// The program serves the metrics that docs/metrics.md promises.
func TestMetrics(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	at := l.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	c, err := open(filepath.Join(t.TempDir(), "state.json"), 9, memory.New(nil), nil)
	require.NoError(t, err)
	go func() { ended <- c.run(ctx, at) }()
	get := func(path string) string {
		answer, err := http.Get("http://" + at + path)
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return string(text)
	}
	request, err := http.NewRequest(http.MethodPut, "http://"+at+"/services/default/web",
		strings.NewReader(web))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		answer, err := http.DefaultClient.Do(request.Clone(ctx))
		if err == nil {
			answer.Body.Close()
		}
		return strings.Contains(get("/healthz"), `"healthy":true`)
	}, time.Minute, 10*time.Millisecond)
	get("/livez")
	promised.Check(t, "../..", "controller", get("/metrics"))
	stop()
	require.NoError(t, <-ended)
}

func TestLargeRemovalsAreNotApproved(t *testing.T) {
	t.Parallel()
	k := &memory.Kernel{}
	c := startOn(t, k, filepath.Join(t.TempDir(), "state.json"), 1)
	two := strings.Replace(web, `"10.96.0.10"`, `"10.96.0.10", "fd00::10"`, 1)
	code, text := c.ask(t, "PUT", "/services/default/web", two)
	require.Equal(t, http.StatusOK, code, text)
	code, text = c.ask(t, "DELETE", "/services/default/web", "")
	require.Equal(t, http.StatusUnprocessableEntity, code)
	require.Contains(t, text, "2 frontends and endpoints would go, and -removes is 1")
	require.Equal(t, 2, k.Table().Len())
	code, _ = c.ask(t, "PUT", "/services/default/web", web)
	require.Equal(t, http.StatusOK, code, "the denied state is not wanted any more")
}

func TestAWrongFileIsAnError(t *testing.T) {
	t.Parallel()
	_, err := open(t.TempDir(), 9, memory.New(nil), nil)
	require.Error(t, err)
	require.True(t, json.Valid([]byte(web)))
}
