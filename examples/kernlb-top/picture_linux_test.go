package main

import (
	"io"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	pages "github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

// The document has a screen of a real node. -update makes it; its heads are those of every screen.
func TestTheDocumentHasAScreen(t *testing.T) {
	t.Parallel()
	const document = "../../docs/kernlb.md"
	const begin, end = "<!-- top -->\n```text\n", "```\n<!-- end -->"
	text := ok(os.ReadFile(document))(t)
	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	shown, after, found := strings.Cut(rest, end)
	require.True(t, found)
	if golden.Updating() {
		shown = taken(t)
		require.NoError(t, os.WriteFile(document, []byte(before+begin+shown+end+after), 0o644))
	}
	for line := range strings.Lines(screen(t, 100, 18).View()) {
		line = strings.TrimRight(line, " \n")
		if strings.Contains(line, "CONN/S") || strings.HasPrefix(line, "by connections") {
			require.Contains(t, shown, line, "go test . -run Screen -update in examples/kernlb-top")
		}
	}
}

// node is a node with three services that are counted, and the page of its engine.
func node(t *testing.T) (c *netnstest.Cluster, all []*servicemodel.Service, url string) {
	t.Helper()
	c = netnstest.Start(t, netnstest.Options{})
	b := ok(nftables.New(&nftables.Config{NetNS: c.Node.NS.Fd()}))(t)
	t.Cleanup(func() { b.Close() })
	engine := dataplane.New(b, nil)
	shown := pages.New(engine, nil)
	t.Cleanup(func() { require.NoError(t, shown.Close()) })
	site := httptest.NewServer(shown)
	t.Cleanup(site.Close)
	state := servicemodel.State{}.WithNode(servicemodel.Node{Name: "node"})
	for i, name := range []string{"cart", "search", "web"} {
		svc := &servicemodel.Service{
			Name:       servicemodel.Name{Namespace: "shop", Name: name},
			ClusterIPs: []netip.Addr{address(10 + i)},
			Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
		var eps []servicemodel.Endpoint
		for _, pod := range c.Pods[:i+1] {
			eps = append(eps, servicemodel.Endpoint{Addr: pod.IPv4, Ready: true,
				Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}})
		}
		state = state.WithService(svc).WithEndpoints(svc.Name, eps)
		ok(engine.Apply(t.Context(), state))(t)
		all = append(all, svc)
		require.NoError(t, c.Pods[i].Serve(servicemodel.TCP, 8080))
	}
	counted := ok(counters.Open(&counters.Config{NetNS: c.Node.NS.Fd()}))(t)
	t.Cleanup(func() { counted.Close() })
	require.NoError(t, counted.Start(t.Context()))
	return c, all, site.URL
}

// taken returns the screen of a node with connections.
func taken(t *testing.T) string {
	t.Helper()
	c, all, url := node(t)
	r := lipgloss.NewRenderer(io.Discard)
	r.SetColorProfile(termenv.Ascii)
	o := &options{backend: "nftables", instance: "kernlb", interval: 2 * time.Second}
	m := newModel(o, r)
	events := ok(newPage(url))(t)
	tell(m, tea.WindowSizeMsg{Width: 100, Height: 15})
	read := func() {
		require.NoError(t, c.Node.NS.Do(func() error {
			from, err := openReader(t.Context(), o)
			if err != nil {
				return err
			}
			defer from.close()
			s, err := from.read(t.Context())
			tell(m, readMsg{sample: s, recent: events.recent(t.Context()), err: err})
			return err
		}))
	}
	connect := func(each int) {
		for i, svc := range all {
			for range each * (i*i + 1) {
				netnstest.Probe{From: c.Outside[0], Proto: servicemodel.TCP,
					To: netip.AddrPortFrom(svc.ClusterIPs[0], 80)}.Send(t.Context())
			}
		}
	}
	connect(20)
	read()
	connect(10)
	time.Sleep(o.interval)
	read()
	var out strings.Builder
	for line := range strings.Lines(m.View()) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return out.String()
}
