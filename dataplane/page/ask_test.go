package page_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/page"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// dialer is a network in which every endpoint answers, except the endpoints in errs.
func dialer(errs map[string]error) func(context.Context, string, string) (net.Conn, error) {
	return func(_ context.Context, _, address string) (net.Conn, error) {
		if err := errs[address]; err != nil {
			return nil, &net.OpError{Op: "dial", Err: err}
		}
		c, other := net.Pipe()
		other.Close()
		return c, nil
	}
}

// post asks the endpoints of a service, like a browser on a page of the site.
func (s *shown) post(path, service, site string) (int, string) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("name="+
		url.QueryEscape(service)))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", site)
	s.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestEndpointsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	n := sm.Name{Namespace: "default", Name: "web"}
	st := web()
	eps := st.Endpoints(n)
	eps[2].Condition = sm.Ready
	eps = append(eps, sm.Endpoint{Addr: addr(10, 244, 4), Ports: ports("http")})
	s := holding(t, st.WithEndpoints(n, eps), &page.Config{Dial: dialer(map[string]error{
		"10.244.0.2:8080": os.NewSyscallError("connect", syscall.ECONNREFUSED),
		"10.244.0.3:8080": os.ErrDeadlineExceeded,
		"10.244.0.4:8080": errors.New("no route to host"),
	})})
	_, body := s.get("/service?name=default/web")
	require.Contains(t, body, "Ask its endpoints")
	code, body := s.post("/ask.json", "default/web", "same-origin")
	require.Equal(t, http.StatusOK, code, body)
	require.JSONEq(t, `{"name": "default/web", "answers": [
		{"endpoint": "10.244.0.1:8080", "ok": true, "says": "answers"},
		{"endpoint": "10.244.0.2:8080", "ok": false,
			"says": "refuses connections: nothing listens there"},
		{"endpoint": "10.244.0.3:8080", "ok": false, "says": "does not answer: it is not `+
		`reached, or a firewall drops the packets or the answers"},
		{"endpoint": "10.244.0.4:8080", "ok": false, "says": "no route to host"}]}`, body)
	code, body = s.post("/ask", "default/web", "same-origin")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "nothing listens there")
	require.Contains(t, body, "kernlb diagnose default/web -from CLIENT")
	parse(t, body)
	for service, want := range map[string]int{"default/wep": http.StatusNotFound,
		"web": http.StatusBadRequest} {
		code, body = s.post("/ask", service, "same-origin")
		require.Equal(t, want, code)
		parse(t, body)
	}
}

// Neither another site nor a link makes a browser ask.
func TestOnlyThePageItselfAsks(t *testing.T) {
	t.Parallel()
	s := holding(t, web(), &page.Config{Dial: dialer(nil)})
	for _, site := range []string{"cross-site", "same-site"} {
		code, _ := s.post("/ask", "default/web", site)
		require.Equal(t, http.StatusForbidden, code)
	}

	code, _ := s.get("/ask?name=default/web")
	require.Equal(t, http.StatusMethodNotAllowed, code)
	none := holding(t, web(), nil)
	code, _ = none.post("/ask", "default/web", "same-origin")
	require.Equal(t, http.StatusNotFound, code)
	_, body := none.get("/service?name=default/web")
	require.NotContains(t, body, "Ask its endpoints")
}

// At most 64 endpoints are asked, and at most 16 at a time.
func TestAskingIsBounded(t *testing.T) {
	t.Parallel()
	var now, most, all atomic.Int64
	st := many(1, 100)
	svc := st.Service(name(0))
	svc.ExternalIPs = []netip.Addr{addr(203, 0, 113)} // the endpoints have a second frontend
	s := holding(t, st.WithService(svc), &page.Config{Dial: func(context.Context, string, string) (
		net.Conn, error) {
		all.Add(1)
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		return nil, fmt.Errorf("asked %d", n)
	}})
	code, body := s.post("/ask", name(0).String(), "same-origin")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "36 endpoints were not asked")
	require.EqualValues(t, 64, all.Load())
	require.LessOrEqual(t, most.Load(), int64(16))
}
