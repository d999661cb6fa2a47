package page_test

import (
	"context"
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
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/servetest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

type rowJSON struct {
	Service, Condition, Cause string
	Frontends                 []string
	Endpoints                 int
}

type listJSON struct {
	All, Problems, Found, Page, Pages int
	Services                          []rowJSON
}

// A search finds services by name, address, port and endpoint.
func TestSearch(t *testing.T) {
	t.Parallel()
	s := holding(t, many(120, 2), nil)
	for query, want := range map[string]struct {
		found int
		first string
	}{
		"":                    {120, "team-0/app-0"},
		"app-11":              {11, "team-0/app-112"},
		"APP-11 team-1":       {1, "team-1/app-113"},
		"team-3/":             {17, "team-3/app-10"},
		"10.96.0.2":           {1, "team-1/app-1"},
		"10.96.0.2:80":        {1, "team-1/app-1"},
		"10.96.0.2:80/tcp":    {1, "team-1/app-1"},
		"10.96.0.2:81":        {0, ""},
		"80":                  {120, "team-0/app-0"}, // all have the port
		"11.0.0.6":            {1, "team-2/app-2"},   // an endpoint
		"11.0.0.6:8080":       {1, "team-2/app-2"},
		"11.0.0.6:80":         {0, ""},
		"::ffff:10.96.0.2":    {1, "team-1/app-1"},
		"<script>":            {0, ""},
		"11.0.0.6 10.96.0.3":  {1, "team-2/app-2"},
		"team-2 11.0.0.6 nix": {0, ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/services.json", nil)
		r.URL.RawQuery = "q=" + strings.ReplaceAll(query, " ", "+")
		var got listJSON
		s.json(t, r.URL.String(), &got)
		require.Equal(t, want.found, got.Found, query)
		require.Equal(t, 120, got.All)
		if want.found > 0 {
			require.Equal(t, want.first, got.Services[0].Service, query)
		}
	}
}

func TestPagesOfTheList(t *testing.T) {
	t.Parallel()
	s := holding(t, many(120, 1), nil)
	seen := map[string]bool{}
	for path, rows := range map[string]int{"/services.json": 50, "/services.json?page=2": 50,
		"/services.json?page=3": 20} {
		var got listJSON
		s.json(t, path, &got)
		require.Len(t, got.Services, rows)
		require.Equal(t, 3, got.Pages)
		for _, r := range got.Services {
			seen[r.Service] = true
		}
	}

	require.Len(t, seen, 120)
	var last listJSON
	s.json(t, "/services.json?page=99", &last)
	require.Equal(t, 3, last.Page, "behind the last page is the last")
	_, at := s.get("/?page=2")
	_, same := s.get("/services?page=2")
	require.Equal(t, at, same, "beside /services.json")
	for _, path := range []string{"/?page=0", "/?page=x", "/services.json?show=none"} {
		code, body := s.get(path)
		require.Equal(t, http.StatusBadRequest, code)
		require.Regexp(t, "(page|show): ", body)
	}
}

func TestServiceShowsWeightsAndShares(t *testing.T) {
	t.Parallel()
	var out []silence.Change
	s := holding(t, web(), &page.Config{Silent: func() []silence.Change { return out }})
	var got struct {
		Condition string
		Ports     []struct {
			HasLocal  bool
			Endpoints []struct {
				Endpoint, Condition, Excluded, ExcludedLocal string
				Weight                                       int
				Cluster, Local                               float64
			}
		}
	}
	s.json(t, "/service.json?name=default/web", &got)
	require.Equal(t, "ok", got.Condition)
	require.Len(t, got.Ports, 1)
	require.True(t, got.Ports[0].HasLocal)
	eps := got.Ports[0].Endpoints
	require.Len(t, eps, 3)
	require.Equal(t, []float64{0.75, 0.25, 0}, []float64{eps[0].Cluster, eps[1].Cluster,
		eps[2].Cluster})
	require.Equal(t, []float64{1, 0, 0}, []float64{eps[0].Local, eps[1].Local, eps[2].Local})
	require.Equal(t, "is not on this node", eps[1].ExcludedLocal)
	require.Equal(t, "is not ready", eps[2].Excluded)
	require.Equal(t, 3, eps[0].Weight)

	out = []silence.Change{{Service: sm.PortName{Name: sm.Name{Namespace: "default", Name: "web"},
		Port: "http", Protocol: sm.TCP}, Endpoint: netip.MustParseAddrPort(eps[2].Endpoint),
		Out: true, Connections: 12, Clients: 5, Since: time.Now().Add(-time.Minute),
		Time: time.Now().Add(-time.Minute).Add(400 * time.Millisecond)}}
	s.json(t, "/service.json?name=default/web", &got)
	require.Regexp(t, "^ejected .* ago: 12 connections of 5 clients unanswered in 400ms$",
		got.Ports[0].Endpoints[2].Excluded)
	require.Empty(t, got.Ports[0].Endpoints[0].Excluded)

	var trace sm.Trace
	s.json(t, "/trace.json?from=10.244.1.5&to=10.96.0.10:80/tcp", &trace)
	require.Equal(t, "silent", trace.Steps[len(trace.Steps)-2].Kind, "%v", trace)
	require.Regexp(t, "^"+eps[2].Endpoint+" ejected ", trace.Steps[len(trace.Steps)-2].Text)
	_, body := s.get("/service?name=default/web")
	require.Contains(t, body, "75 %")
	require.Contains(t, body, "clients at cluster IPs: <b>endpoints anywhere</b>")
	require.Contains(t, body, "clients from outside: <b>endpoints on this node</b>")
	code, _ := s.get("/service?name=default/wep")
	require.Equal(t, http.StatusNotFound, code)
	code, _ = s.get("/service?name=web")
	require.Equal(t, http.StatusBadRequest, code)
}

// Changes appear at once, and removed services disappear.
func TestTheListFollowsTheEngine(t *testing.T) {
	t.Parallel()
	s := newShown(t, nil)
	var got listJSON
	s.json(t, "/services.json", &got)
	require.Zero(t, got.All)
	s.engine.Set(web())
	s.json(t, "/services.json", &got)
	require.Equal(t, "unknown", got.Services[0].Condition)
	var trace struct {
		Outcome string
		Wanted  bool
	}
	const path = "/trace.json?from=10.244.1.5&to=10.96.0.10:80/tcp"
	s.json(t, path, &trace)
	require.True(t, trace.Wanted, "by what is wanted")
	require.Equal(t, "balanced", trace.Outcome)
	must.OK(s.engine.Apply(t.Context(), web()))(t)
	s.json(t, "/services.json", &got)
	require.Equal(t, "ok", got.Services[0].Condition)
	require.Equal(t, 2, got.Services[0].Endpoints)
	more := web().WithService(service(name(1), addr(10, 96, 11)))
	s.engine.Set(more)
	s.json(t, "/services.json", &got)
	require.Equal(t, "pending", got.Services[1].Condition)
	s.engine.Set(sm.State{})
	s.json(t, "/services.json", &got)
	require.Equal(t, "removed", got.Services[0].Condition)
	must.OK(s.engine.Cleanup(t.Context()))(t)
	s.json(t, "/services.json", &got)
	require.Zero(t, got.All)
}

// The pages show what is left of a refused service in the kernel. A refused family is not a
// service, so no link refers to it.
func TestRefusalsSayWhatIsLeft(t *testing.T) {
	t.Parallel()
	n := sm.Name{Namespace: "default", Name: "web"}
	for want, cfg := range map[string]dataplane.Config{
		"The service is left out: ":             {},
		"The service is as it was before: ":     {KeepRefused: true},
		"The service is without some endpoints": {LeaveOutEndpoints: true},
	} {
		backend := memory.New(nil)
		e := dataplane.New(backend, &cfg)
		p := page.New(e, nil)
		must.OK(e.Apply(t.Context(), web()))(t)
		bad := web()
		if cfg.LeaveOutEndpoints {
			bad = bad.WithEndpoints(n, append(bad.Endpoints(n), sm.Endpoint{}))
		} else {
			bad = bad.WithService(service(n, addr(10, 96, 10), func(s *sm.Service) {
				s.Ports[0].Port = 0
			}))
		}

		must.OK(e.Apply(t.Context(), bad))(t)
		_, body := ask(p, "/service?name=default/web")
		require.Contains(t, body, want)

		backend.Refuse(func(c *sm.ChangeSet) error {
			if c.New.Rules().OnlyFamily != 0 {
				return nil
			}
			return &backends.UnsupportedError{Object: "the kernel",
				Field: backends.FieldFamily, Value: "IPv6"}
		})

		e.Resync()
		must.OK(e.Apply(t.Context(), web()))(t)
		_, body = ask(p, "/refused")
		require.Contains(t, body, `<th scope="row">IPv6</th>`)
		require.NoError(t, p.Close())
	}
}

// slow is a backend whose Cleanup calls a function.
type slow struct {
	*memory.Backend
	during func()
}

func (s *slow) Cleanup(ctx context.Context) (backends.Stats, error) {
	s.during()
	return s.Backend.Cleanup(ctx)
}

// Engine.Switch reports the new backend's refusals before it cleans up the old one. A page that is
// shown in between is consistent.
func TestTheListIsWholeDuringASwitch(t *testing.T) {
	t.Parallel()
	old := &slow{Backend: memory.New(nil)}
	name := sm.Name{Namespace: "default", Name: "web"}
	old.Refuse(func(c *sm.ChangeSet) error {
		for _, f := range c.Frontends {
			if f.New != nil {
				return &backends.UnsupportedError{Backend: "old", Service: name,
					Object: "service default/web", Field: "scheduler", Value: "lc"}
			}
		}

		return nil
	})

	e := dataplane.New(old, nil)
	p := page.New(e, nil)
	defer p.Close()
	must.OK(e.Apply(t.Context(), web()))(t)
	condition := func() string {
		code, body := ask(p, "/services.json")
		require.Equal(t, http.StatusOK, code)
		_, body, _ = strings.Cut(body, `"condition": "`)
		return body[:strings.Index(body, `"`)]
	}

	require.Equal(t, "refused", condition())
	old.during = func() { require.NotEqual(t, "refused", condition()) }
	must.OK(e.Switch(t.Context(), memory.New(nil)))(t)
	require.Equal(t, "ok", condition())
}

func TestARecentBelowZeroKeepsNothing(t *testing.T) {
	t.Parallel()
	s := holding(t, many(1, 1), &page.Config{Recent: -1})
	_, body := s.get("/recent.json")
	require.Contains(t, body, `"events": []`)
}

func TestRecentIsBoundedAndTellsWhatWasDone(t *testing.T) {
	t.Parallel()
	s := newShown(t, &page.Config{Recent: 3})
	type eventJSON struct {
		Kind, Text, Duration string
		Rest                 int
		Changes              []string
		Counts               sm.Counts
	}
	var got struct {
		Totals dataplane.Totals
		Events []eventJSON
	}
	s.json(t, "/recent.json", &got)
	require.Equal(t, []eventJSON{}, got.Events, "an empty list, not null")
	for _, n := range []int{1, 2, 3, 100} {
		must.OK(s.engine.Apply(t.Context(), many(n, 1)))(t)
	}
	_, err := s.engine.Apply(t.Context(), many(100, 1)) // nothing to do
	require.NoError(t, err)
	s.json(t, "/recent.json", &got)
	require.Len(t, got.Events, 3)
	require.Equal(t, 5, got.Totals.Applies)
	require.Equal(t, 97, got.Events[0].Counts.Added)
	require.Equal(t, 1, got.Events[1].Counts.Added)
	require.NotZero(t, got.Events[0].Rest, "not all changes are kept")
	require.Contains(t, got.Events[1].Changes, "+ frontend 10.96.0.3:80/tcp team-2/app-2:http "+
		"cluster-ip -> cluster; masquerade host,outside")
	s.backend.Fail(memory.CallObserve, 1, errors.New("no luck"))
	s.engine.Resync()
	_, err = s.engine.Apply(t.Context(), many(1, 1))
	require.Error(t, err)
	s.json(t, "/recent.json", &got)
	require.Equal(t, "failed", got.Events[0].Kind)
	require.Contains(t, got.Events[0].Text, "no luck")
	_, body := s.get("/")
	require.Contains(t, body, "no luck", "each page says that it failed")
}

func TestTrace(t *testing.T) {
	t.Parallel()
	s := holding(t, web(), &page.Config{Addresses: here})
	for query, want := range map[string]string{
		"from=10.244.1.5&to=10.96.0.10:80/tcp":             "balanced",
		"from=203.0.113.9&to=192.168.0.1:30080/tcp":        "balanced",
		"from=192.168.0.1&to=10.96.0.10:80/tcp":            "balanced",
		"from=10.244.1.5&to=10.96.0.10:81/tcp":             "rejected",
		"from=10.244.1.5&link=eth0&to=192.0.2.1:53/udp":    "untouched",
		"from=::ffff:10.244.1.5&to=10.96.0.10:80/TCP":      "balanced",
		"from=192.168.0.1&link=eth0&to=192.168.0.1:22/tcp": "untouched",
	} {
		var got struct {
			Outcome string
			Steps   []struct{ Step, Text string }
		}
		s.json(t, "/trace.json?"+query, &got)
		require.Equal(t, want, got.Outcome, query)
		require.Equal(t, "outcome", got.Steps[len(got.Steps)-1].Step)
	}

	for query, field := range map[string]string{
		"from=x&to=10.96.0.10:80/tcp":            "from: ",
		"from=fe80::1%25eth0&to=[fe80::2]:1/tcp": "from: ",
		"from=10.0.0.1&to=10.96.0.10:80":         "to: ",
		"from=10.0.0.1&to=*4:30080/tcp":          "to: ",
		"from=10.0.0.1&to=":                      "to: ",
		"from=10.0.0.1&to=[fd00::1]:80/tcp":      "from and to: ",
	} {
		code, body := s.get("/trace.json?" + query)
		require.Equal(t, http.StatusBadRequest, code, query)
		require.Contains(t, body, field, query)
		_, body = s.get("/trace?" + query)
		require.Contains(t, body, `name="from" value=`, "the form stays")
	}
}

// Chains are listed in the order in which packets pass them, with the rules that drop packets.
func TestHooks(t *testing.T) {
	t.Parallel()
	s := holding(t, web(), &page.Config{Hooks: chains})
	var got struct {
		Chains []struct{ Hook, Name string }
	}
	s.json(t, "/hooks.json", &got)
	require.Equal(t, "forward", got.Chains[0].Hook)
	require.Equal(t, "out", got.Chains[1].Name)
	_, body := s.get("/hooks")
	require.Contains(t, body, "<code>inet fw out</code>")
	require.Contains(t, body, "web, handle 7: th dport 80 drop")
	require.Contains(t, body, "policy drop")
	code, _ := holding(t, web(), nil).get("/hooks")
	require.Equal(t, http.StatusNotFound, code)
}

// Only reading is possible, and only for pages of the same origin.
func TestHeadersAndMethods(t *testing.T) {
	t.Parallel()
	s := holding(t, web(), nil)
	for _, path := range []string{"/", "/services.json", "/style.css", "/nothing"} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		csp := w.Header().Get("Content-Security-Policy")
		require.Contains(t, csp, "default-src 'none'")
		require.NotContains(t, csp, "script-src")
		require.NotContains(t, csp, "unsafe")
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		require.Equal(t, path == "/nothing", w.Code == http.StatusNotFound)
	}

	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
		require.Equal(t, http.StatusMethodNotAllowed, w.Code)
	}
}

func TestLoopbackRefusesOtherNames(t *testing.T) {
	t.Parallel()
	h := page.Loopback(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, want := range map[string]int{"127.0.0.1:10256": 200, "localhost:1": 200,
		"[::1]:80": 200, "[::1]": 200, "localhost": 200, "127.0.0.1": 200,
		"evil.example:10256": 421, "localhost.evil.example": 421, "192.0.2.1:80": 421, "": 421} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		h.ServeHTTP(w, r)
		require.Equal(t, want, w.Code, host)
	}
}

// A closed page gets no more events.
func TestClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShown(t, nil)
		require.NoError(t, s.Close())
		must.OK(s.engine.Apply(context.Background(), web()))(t)
		time.Sleep(time.Hour)
		var got struct{ Events []any }
		s.json(t, "/recent.json", &got)
		require.Empty(t, got.Events)
		_, body := s.get("/")
		require.Contains(t, body, "1h0m ago")
	})
}

// The findings of the checks of the node have a page.
func TestNode(t *testing.T) {
	t.Parallel()
	s := holding(t, web(), &page.Config{Node: found(node.Report{Findings: findings,
		Unknown: []string{"conntrack: no permission"}})})
	var got node.Report
	s.json(t, "/node.json", &got)
	require.Equal(t, findings, got.Findings)
	_, body := s.get("/node")
	for _, f := range findings {
		require.Contains(t, body, `<td><span class="state `+string(f.Severity)+`">`)
		require.Contains(t, body, f.Means+"</td><td>"+f.Do+"</td>")
	}

	require.Contains(t, body, "<li>conntrack: no permission</li>")
	code, _ := holding(t, web(), nil).get("/node")
	require.Equal(t, http.StatusNotFound, code)
}

func TestThePageOfNoEngine(t *testing.T) {
	t.Parallel()
	p := page.New(nil, nil)
	for _, path := range []string{"/", "/service?name=a/b", "/refused", "/recent", "/conntrack",
		"/trace", "/trace?from=10.0.0.1&to=10.96.0.1:80/tcp", "/hooks",
		"/node"} {
		code, body := ask(p, path)
		require.NotEqual(t, http.StatusInternalServerError, code, "%s: %s", path, body)
	}

	require.NoError(t, p.Close())
}

func TestHostileClients(t *testing.T) {
	t.Parallel()
	servetest.HostileToHandler(t, "/", holding(t, web(), nil))
}

// The navigation of each page has the links of the program.
func TestThePageHasLinksOfTheProgram(t *testing.T) {
	t.Parallel()
	s := newShown(t, &page.Config{Links: map[string]string{"Backends": "backends"}})
	for _, path := range []string{"/", "/node", "/trace"} {
		_, body := s.get(path)
		require.Contains(t, body, `<li><a href="backends">Backends</a></li>`)
	}
}
