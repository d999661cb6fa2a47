package graph_test

import (
	"encoding/xml"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/graph"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/internal/test/golden"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func all(*sm.Frontend) bool { return true }

// table has a service with weights and policy Local, a service without endpoints, and a service
// that drops.
func table(t testing.TB) *sm.Table {
	t.Helper()
	service := func(name string, ip byte, edit func(*sm.Service)) *sm.Service {
		s := &sm.Service{Name: sm.Name{Namespace: "default", Name: name},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, ip})},
			Ports:      []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80}}}
		edit(s)
		return s
	}

	endpoint := func(i, weight int, node string) sm.Endpoint {
		return sm.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}),
			Weight: uint16(weight), Node: node,
			Ports: []sm.EndpointPort{{Name: "http", Protocol: sm.TCP, Port: 8080}}}
	}

	local := func(port uint16) func(*sm.Service) {
		return func(s *sm.Service) {
			s.ExternalTrafficPolicy = sm.PolicyLocal
			s.Ports[0].NodePort = port
		}
	}

	var many []sm.Endpoint
	for i := range 20 {
		many = append(many, endpoint(100+i, 1, "n2"))
	}
	st := sm.State{}.WithNode(sm.Node{Name: "n1"}).
		WithService(service("web", 10, local(30080))).
		WithService(service("mail", 11, local(30081))).
		WithService(service("shop", 12, func(s *sm.Service) { s.SessionAffinity.ClientIP = true }))
	st = st.WithEndpoints(sm.Name{Namespace: "default", Name: "web"},
		[]sm.Endpoint{endpoint(1, 3, "n1"), endpoint(2, 1, "n2")}).
		WithEndpoints(sm.Name{Namespace: "default", Name: "mail"}, many)
	got, err := sm.Resolve(nil, st)
	require.NoError(t, err)
	return got
}

// chains are chains of kernlb and of two other programs.
func chains() []hooks.Chain {
	c := func(family, table, name string, h hooks.Hook, prio int32,
		drops ...hooks.Rule) hooks.Chain {
		return hooks.Chain{Family: family, Table: table, Name: name, Type: "filter", Hook: h,
			Priority: prio, Drops: drops}
	}

	drop := hooks.Rule{Chain: "web", Handle: 7, Text: "tcp dport 8080 drop", Comment: "no web"}
	policy := c("ip", "filter", "FORWARD", hooks.Forward, 0)
	policy.DropsByDefault = true
	return []hooks.Chain{
		c("ip", "kernlb", "nat-prerouting", hooks.Prerouting, -100),
		c("inet", "fw", "raw", hooks.Prerouting, -300),
		c("ip", "kernlb", "nat-output", hooks.Output, -100),
		c("ip", "kernlb", "filter-forward", hooks.Forward, 0),
		c("ip6", "filter", "INPUT", hooks.Input, 0),
		c("inet", "fw", "out", hooks.Postrouting, 10, drop, drop, drop, drop, drop),
		policy,
	}
}

func ours(c *hooks.Chain) bool { return c.Table == "kernlb" }

func TestDrawingsAreGolden(t *testing.T) {
	t.Parallel()
	for name, g := range map[string]*graph.Graph{
		"services": graph.Services(table(t), all),
		"hooks":    graph.Hooks(chains(), sm.IPv4, ours),
	} {
		for suffix, got := range map[string]string{"mmd": g.Mermaid(), "dot": g.DOT(),
			"svg": g.SVG()} {
			golden.File(t, "testdata/"+name+"."+suffix, got)
		}
	}
}

// Only the frontends for which keep is true are drawn. An empty table gives an empty drawing.
func TestOnlyWhatIsKeptIsDrawn(t *testing.T) {
	t.Parallel()
	web := graph.Services(table(t), func(f *sm.Frontend) bool {
		return f.Service.Name.Name == "web"
	})
	require.Contains(t, web.Mermaid(), "default/web:http")
	require.NotContains(t, web.Mermaid(), "shop")
	for _, g := range []*graph.Graph{graph.Services(nil, all), graph.Hooks(nil, sm.IPv6, ours)} {
		wellFormed(t, g.SVG())
		require.Contains(t, g.Mermaid(), "flowchart")
	}
}

// A column has its title even if the first service has no endpoints.
func TestColumnsHaveTitles(t *testing.T) {
	t.Parallel()
	texts := wellFormed(t, graph.Services(table(t), nil).SVG())
	for _, title := range []string{"service", "frontend", "pool", "endpoint"} {
		require.Contains(t, texts, title)
	}
	none := graph.Services(table(t), func(f *sm.Frontend) bool { return f.Internal == sm.Reject })
	require.NotContains(t, wellFormed(t, none.SVG()), "endpoint", "a column without boxes")
}

func wellFormed(t *testing.T, svg string) (texts []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if err == io.EOF {
			return texts
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			require.Contains(t, []string{"svg", "style", "defs", "marker", "path", "rect", "g",
				"text"}, token.Name.Local)
			for _, a := range token.Attr {
				require.NotContains(t, []string{"href", "onload"}, a.Name.Local)
			}
		case xml.CharData:
			texts = append(texts, string(token))
		}
	}
}

// Foreign names stay text in each language.
func TestNothingIsInjected(t *testing.T) {
	t.Parallel()
	const evil = "\"]; <script>alert(1)</script> \\\" end %% & | `x` \x00"
	g := graph.Hooks([]hooks.Chain{{Family: "ip", Table: evil, Name: evil, Type: evil,
		Hook:  hooks.Prerouting,
		Drops: []hooks.Rule{{Chain: evil, Text: evil, Comment: evil}}}}, sm.IPv4, ours)
	texts := wellFormed(t, g.SVG())
	require.Contains(t, strings.Join(texts, ""), "<script>alert(1)</script>")
	for line := range strings.Lines(g.Mermaid()) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "n"); ok && strings.Contains(
			rest, "[\"") {
			require.Equal(t, 2, strings.Count(rest, `"`), line)
			require.NotContains(t, rest, "script>")
		}
	}

	for line := range strings.Lines(g.DOT()) {
		quotes := strings.Count(strings.NewReplacer(`\\`, "", `\"`, "").Replace(line), `"`)
		require.Zero(t, quotes%2, line)
	}
}
