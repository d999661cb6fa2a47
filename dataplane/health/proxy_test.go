package health_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestHealthIsThatOfKubeProxy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		backend := memory.New(nil)
		engine := dataplane.New(backend, nil)
		eligible := true
		proxy := health.NewProxy(engine, &health.ProxyConfig{
			Eligible: func() bool { return eligible },
			Families: []servicemodel.Family{servicemodel.IPv4}})
		get := func(path string, code int) string {
			t.Helper()
			w := httptest.NewRecorder()
			proxy.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			require.Equal(t, code, w.Code)
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
			require.True(t, json.Valid(w.Body.Bytes()))
			return w.Body.String()
		}

		// A bubble begins at midnight UTC 2000-01-01. No state is wanted yet.
		const midnight = `"2000-01-01T00:00:00Z"`
		require.JSONEq(t, `{"lastUpdated": `+midnight+`, "currentTime": `+midnight+`,
			"nodeEligible": true, "healthy": true,
			"status": {"IPv4": {"lastUpdated": `+midnight+`, "healthy": true}}}`,
			get("/healthz", http.StatusOK))

		backend.Fail(memory.CallCommit, 2, errors.New("no memory"))
		state := servicemodel.State{}.WithService(&servicemodel.Service{Name: web,
			Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80,
				NodePort: 80}}})
		for range 2 { // the second state does not reset the age of the first
			_, err := engine.Apply(t.Context(), state)
			require.Error(t, err)
			time.Sleep(59 * time.Second)
			require.Equal(t, proxy.Healthy(), time.Now().Minute() == 0)
		}

		require.JSONEq(t, `{"lastUpdated": `+midnight+`, "currentTime": "2000-01-01T00:01:58Z",
			"healthy": false,
			"status": {"IPv4": {"lastUpdated": `+midnight+`, "healthy": false}}}`,
			get("/livez", http.StatusServiceUnavailable))

		_, err := engine.Apply(t.Context(), state)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.JSONEq(t, `{"lastUpdated": "2000-01-01T01:01:58Z",
			"currentTime": "2000-01-01T01:01:58Z", "healthy": true,
			"status": {"IPv4": {"lastUpdated": "2000-01-01T00:01:58Z", "healthy": true}}}`,
			get("/livez", http.StatusOK))

		eligible = false
		require.Contains(t, get("/healthz", http.StatusServiceUnavailable), `"healthy":true`)
		get("/livez", http.StatusOK)
	})
}

func TestTheHealthOfNoEngine(t *testing.T) {
	t.Parallel()
	require.True(t, health.NewProxy(nil, nil).Healthy())
}

// The answers list problems that do not make the proxy unhealthy.
func TestTheAnswerListsProblems(t *testing.T) {
	t.Parallel()
	engine := dataplane.New(memory.New(nil), &dataplane.Config{KeepRefused: true})
	svc := servicemodel.Service{Name: web,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
	bad := svc
	bad.Ports = []servicemodel.ServicePort{{Protocol: servicemodel.TCP}}
	for _, s := range []servicemodel.Service{svc, bad} {
		_, err := engine.Apply(t.Context(), servicemodel.State{}.WithService(&s))
		require.NoError(t, err)
	}

	proxy := health.NewProxy(engine, &health.ProxyConfig{
		Problems: func() []string { return []string{"web.yaml is broken"} },
		Silent: func() []silence.Change {
			at := time.Now().Add(-90 * time.Second)
			return []silence.Change{{Service: servicemodel.PortName{Name: web,
				Protocol: servicemodel.TCP}, Out: true, Time: at, Since: at.Add(-time.Second),
				Endpoint: netip.MustParseAddrPort("10.244.0.1:80"), Connections: 12, Clients: 5}}
		}})
	w := httptest.NewRecorder()
	proxy.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	require.Equal(t, http.StatusOK, w.Code)
	var got struct {
		Problems []string
		Silent   []silence.Change
		Refused  []struct {
			Service string
			Kept    bool
		}
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	require.Equal(t, []string{"web.yaml is broken"}, got.Problems)
	require.Len(t, got.Silent, 1)
	require.Equal(t, "10.244.0.1:80 of "+web.String()+" ejected: 12 connections of 5 clients "+
		"unanswered in 1s", got.Silent[0].String())
	require.Regexp(t, "^ejected 1m[3-9].*s ago: 12 conn", got.Silent[0].Status(time.Now()))
	require.Len(t, got.Refused, 1)
	require.Equal(t, web.String(), got.Refused[0].Service)
	require.True(t, got.Refused[0].Kept)
}

// The JSON of /healthz contains the findings of the node's checks. /livez does not check the node.
func TestTheAnswerListsFindingsOfTheNode(t *testing.T) {
	t.Parallel()
	engine := dataplane.New(memory.New(nil), nil)
	_, err := engine.Apply(t.Context(), servicemodel.State{})
	require.NoError(t, err)
	asked := 0
	handler := health.NewProxy(engine, &health.ProxyConfig{
		Node: func(_ context.Context, held *servicemodel.Table) *node.Report {
			asked++
			require.Same(t, engine.Status().Held, held)
			return &node.Report{Findings: []node.Finding{{Check: node.Forwarding,
				Severity: node.Error, Means: "off", Do: "on"}}}
		}}).Handler()
	for path, want := range map[string]int{"/healthz": 1, "/livez": 0} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, want, strings.Count(w.Body.String(), `"findings":[{"check":"forwarding",`+
			`"severity":"error","means":"off","do":"on"}]`), "%s: %s", path, w.Body)
	}

	require.Equal(t, 1, asked)
}
