package page_test

import (
	"context"
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/page"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// fakeCounters are counters with some values.
type fakeCounters struct {
	counters.Reading
	err error
}

func (c fakeCounters) Read(context.Context) (*counters.Reading, error) { return &c.Reading, c.err }

// used returns counters of web, at its cluster IP and at its node port.
func used() fakeCounters {
	pair := func(dst string) counters.Pair {
		return counters.Pair{Protocol: sm.TCP, Dst: netip.MustParseAddrPort(dst),
			Endpoint: netip.MustParseAddrPort("10.244.0.1:8080")}
	}

	return fakeCounters{Reading: counters.Reading{Pairs: map[counters.Pair]counters.Values{
		pair("10.96.0.10:80"):     {Connections: 41, PacketsIn: 42, BytesIn: 43, PacketsOut: 44},
		pair("192.168.0.1:30080"): {Connections: 51},
		pair("10.96.0.99:80"):     {Connections: 61},
	}}}
}

func TestCounters(t *testing.T) {
	t.Parallel()
	s := holding(t, web(), &page.Config{Counters: used(), Addresses: here})
	var got struct{ Counters []counters.Row }
	s.json(t, "/service.json?name=default/web", &got)
	require.Empty(t, got.Counters, "nobody asked")
	s.json(t, "/service.json?name=default/web&counters=1", &got)
	had := map[string]uint64{}
	for _, r := range got.Counters {
		name := r.Frontend.String()
		if r.Endpoint != nil {
			name += " " + r.Endpoint.String()
		}
		had[name] = r.Connections
	}

	require.Equal(t, map[string]uint64{"10.96.0.10:80/tcp": 41,
		"10.96.0.10:80/tcp 10.244.0.1:8080": 41, "10.96.0.10:80/tcp 10.244.0.2:8080": 0,
		"*4:30080/tcp": 51, "*4:30080/tcp 10.244.0.1:8080": 51,
		"*4:30080/tcp 10.244.0.2:8080": 0}, had)
	_, body := s.get("/service?name=default/web&counters=1")
	require.Contains(t, body, "Packets in")
	require.Contains(t, body, `<td class="num">42</td>`)

	few := used()
	few.OnlyConnections = true
	_, body = holding(t, web(), &page.Config{Counters: few}).
		get("/service?name=default/web&counters=1")
	require.NotContains(t, body, "Packets in")
	code, body := holding(t, web(), &page.Config{Counters: fakeCounters{err: counters.ErrOff}}).
		get("/service?name=default/web&counters=1")
	require.Equal(t, http.StatusNotFound, code)
	require.Contains(t, body, "counters are off")
	code, _ = holding(t, web(), nil).get("/service.json?name=default/web&counters=1")
	require.Equal(t, http.StatusNotFound, code)
}

// The reader switches refreshing on and off, and keeps the search.
func TestRefresh(t *testing.T) {
	t.Parallel()
	s := holding(t, web(), nil)
	const tag = `<meta http-equiv="refresh" content="5">`
	_, body := s.get("/?q=web")
	require.NotContains(t, body, tag)
	require.Contains(t, body, `href="?q=web&amp;refresh=on">Refresh every 5 s</a>`)
	_, body = s.get("/?q=web&refresh=on")
	require.Contains(t, body, tag)
	require.Contains(t, body, `href="?q=web">Stop refreshing</a>`)
	require.Contains(t, body, `<input type="hidden" name="refresh" value="on">`)
	require.Contains(t, body, `href="recent?refresh=on"`)
	_, body = s.get("/?refresh=1")
	require.NotContains(t, body, tag)
}
