package page_test

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane/page"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// fakeConntrack is a conntrack table that holds some flows, or fails.
type fakeConntrack struct {
	flows []conntrack.Flow
	err   error
	wait  chan struct{} // closed when flows may be read
}

func (c fakeConntrack) Usage(context.Context) (conntrack.Usage, error) {
	return conntrack.Usage{Count: 90, Max: 100, Stats: conntrack.Stats{Dropped: 7}}, c.err
}

func (c fakeConntrack) NodeAddrs([]netip.Prefix) ([]netip.Addr, error) {
	return []netip.Addr{addr(192, 168, 1)}, c.err
}

func (c fakeConntrack) Flows(ctx context.Context, _ conntrack.Filter) iter.Seq2[conntrack.Flow,
	error] {
	if c.wait != nil {
		<-c.wait
	}
	return conntrack.All(c.flows...)
}

// flow returns a TCP flow to a frontend. Its status says whether the endpoint has answered.
func flow(dst, endpoint string, s conntrack.Status, tcp conntrack.TCPState) conntrack.Flow {
	client := netip.MustParseAddrPort("10.244.7.7:40000")
	return conntrack.Flow{Protocol: conntrack.TCP, Status: s, TCP: tcp,
		Original: conntrack.Tuple{Src: client, Dst: netip.MustParseAddrPort(dst)},
		Reply:    conntrack.Tuple{Src: netip.MustParseAddrPort(endpoint), Dst: client}}
}

// connected returns answered and unanswered connections of web.
func connected() fakeConntrack {
	const answered = conntrack.StatusSeenReply | conntrack.StatusAssured
	const synSent, closed conntrack.TCPState = 1, 8
	return fakeConntrack{flows: []conntrack.Flow{
		flow("10.96.0.10:80", "10.244.0.1:8080", answered, conntrack.TCPEstablished),
		flow("10.96.0.10:80", "10.244.0.1:8080", answered, closed),
		flow("192.168.0.1:30080", "10.244.0.1:8080", 0, synSent),
		flow("10.96.0.10:80", "10.244.0.2:8080", 0, synSent),
		flow("10.96.0.10:80", "10.244.0.3:8080", answered, conntrack.TCPEstablished),
		flow("10.96.0.99:80", "10.244.0.3:8080", answered, conntrack.TCPEstablished),
	}}
}

// Connections show which endpoints answer.
func TestConnections(t *testing.T) {
	t.Parallel()
	s := holding(t, web(), &page.Config{Conntrack: connected()})
	type countsJSON struct {
		Endpoint             string
		Former               bool
		Answered, Unanswered int
	}
	var got struct{ Connections []countsJSON }
	s.json(t, "/service.json?name=default/web&connections=1", &got)
	require.Equal(t, []countsJSON{
		{"10.244.0.1:8080", false, 2, 1},
		{"10.244.0.2:8080", false, 0, 1},
		{"10.244.0.3:8080", true, 1, 0},
	}, got.Connections)
	_, body := s.get("/service?name=default/web&connections=1")
	require.Contains(t, body, "not used for new connections")
	_, body = s.get("/service?name=default/web")
	require.NotContains(t, body, "not used for new connections", "nobody asked")
	none := holding(t, web(), &page.Config{Conntrack: fakeConntrack{}})
	_, body = none.get("/service?name=default/web&connections=1")
	require.Contains(t, body, ": none")
}

// An endpoint that a service uses only for some clients has two counts, in a fixed order.
func TestConnectionsOfSomeClientsAreFormer(t *testing.T) {
	t.Parallel()
	st := web()
	svc := st.Service(sm.Name{Namespace: "default", Name: "web"})
	svc.InternalTrafficPolicy, svc.ExternalTrafficPolicy = sm.PolicyLocal, sm.PolicyCluster
	s := holding(t, st.WithService(svc), &page.Config{Conntrack: fakeConntrack{
		flows: []conntrack.Flow{flow("10.96.0.10:80", "10.244.0.2:8080", 0, 1),
			flow("192.168.0.1:30080", "10.244.0.2:8080", 0, 1)}}})
	for range 20 {
		var got struct{ Connections []struct{ Former bool } }
		s.json(t, "/service.json?name=default/web&connections=1", &got)
		require.Equal(t, []struct{ Former bool }{{false}, {true}}, got.Connections)
	}
}

// Only one request at a time reads the table, because a large table takes seconds.
func TestOneReadsConntrackAtATime(t *testing.T) {
	t.Parallel()
	wait := make(chan struct{})
	s := holding(t, web(), &page.Config{Conntrack: fakeConntrack{wait: wait}})
	const path = "/service.json?name=default/web&connections=1"
	codes := make(chan int, 2)
	for range 2 {
		go func() {
			code, _ := s.get(path)
			codes <- code
		}()
	}

	require.Equal(t, http.StatusServiceUnavailable, <-codes)
	close(wait)
	require.Equal(t, http.StatusOK, <-codes)
}

func TestConntrackUsage(t *testing.T) {
	t.Parallel()
	s := holding(t, web(), &page.Config{Conntrack: fakeConntrack{}})
	var got struct {
		Count, Max int
		Fraction   float64
		Stats      struct{ Dropped int }
	}
	s.json(t, "/conntrack.json", &got)
	require.Equal(t, 0.9, got.Fraction)
	require.Equal(t, 7, got.Stats.Dropped)
	_, body := s.get("/conntrack")
	require.Contains(t, body, "90 %")
	code, body := holding(t, web(), nil).get("/conntrack")
	require.Equal(t, http.StatusNotFound, code)
	require.Contains(t, body, "does not look at conntrack")
	failing := holding(t, web(), &page.Config{Conntrack: fakeConntrack{err: errors.New("no")}})
	code, _ = failing.get("/conntrack")
	require.Equal(t, http.StatusInternalServerError, code)
}
