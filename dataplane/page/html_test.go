package page_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/hooks"
	nodechecks "github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/internal/test/must"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// document holds the facts about a page that can be checked without a browser.
type document struct {
	elements map[string]int    // by their names
	ids      map[string]bool   // of elements
	refers   []string          // ids that attributes mention
	links    []string          // to the same site
	texts    map[string]string // contents of elements, by their names
}

// parse parses a page, and requires that all browsers parse it the same way.
func parse(t *testing.T, text string) *document {
	t.Helper()
	root := must.OK(html.Parse(strings.NewReader(text)))(t)
	d := &document{elements: map[string]int{}, ids: map[string]bool{}, texts: map[string]string{}}
	for n := range root.Descendants() {
		if n.Type == html.TextNode {
			d.texts[n.Parent.Data] += n.Data
		}
		if n.Type != html.ElementNode {
			continue
		}
		d.elements[n.Data]++
		for _, a := range n.Attr {
			d.attribute(t, n, a)
		}
	}

	for _, id := range d.refers {
		require.True(t, d.ids[id], "no element has the id %s", id)
	}
	require.Equal(t, 1, d.elements["h1"])
	require.Equal(t, 1, d.elements["main"])
	require.Zero(t, d.elements["script"]+d.elements["style"]+d.elements["img"]+
		d.elements["iframe"])
	return d
}

func (d *document) attribute(t *testing.T, n *html.Node, a html.Attribute) {
	switch a.Key {
	case "id":
		require.False(t, d.ids[a.Val], "id %s occurs twice", a.Val)
		d.ids[a.Val] = true
	case "for", "aria-labelledby", "aria-describedby":
		d.refers = append(d.refers, a.Val)
	case "href", "action":
		if id, local := strings.CutPrefix(a.Val, "#"); local {
			d.refers = append(d.refers, id)
		} else {
			d.links = append(d.links, a.Val)
		}
	case "style":
		require.Fail(t, "styles in elements are forbidden by the policy", "%s", n.Data)
	default:
		require.False(t, strings.HasPrefix(a.Key, "on"), "%s of %s", a.Key, n.Data)
	}
}

// Every link of every page refers to a page or to JSON, wherever the page is mounted.
func TestEveryLinkLeadsSomewhere(t *testing.T) {
	t.Parallel()
	s := holding(t, broken(), &page.Config{Conntrack: fakeConntrack{}, Hooks: chains,
		Node: found(nodechecks.Report{})})
	const prefix = "/debug/kernlb"
	h := http.StripPrefix(prefix, s.Page)
	base := must.OK(url.Parse(prefix + "/"))(t)
	todo, seen := []string{"./"}, map[string]bool{}
	for len(todo) > 0 {
		link := todo[0]
		todo = todo[1:]
		if seen[link] {
			continue
		}
		seen[link] = true
		at := must.OK(base.Parse(link))(t)
		require.True(t, strings.HasPrefix(at.Path, prefix+"/"), link)
		code, body := ask(h, at.String())
		require.Equal(t, http.StatusOK, code, "%s: %s", link, body)
		if strings.HasPrefix(body, "<!DOCTYPE html>") {
			todo = append(todo, parse(t, body).links...)
		}
	}

	for _, link := range []string{"style.css", "./services.json", "refused", "recent", "conntrack",
		"node", "hooks", "trace", "service?name=default%2fweb",
		"service?name=default%2fweb&connections=1", "trace?to=10.96.0.10%3a80%2ftcp"} {
		require.True(t, seen[link], "nothing links to %s: %v", link, seen)
	}
}

// Foreign text stays text: names of services and nodes, messages of backends and the kernel, and
// input of the user.
func TestNothingIsInjected(t *testing.T) {
	t.Parallel()
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(1)>'`
	st := web()
	node := st.Node()
	node.Name, node.LocalPods.InterfacePrefix = evil, ""
	st = st.WithNode(node)
	n := sm.Name{Namespace: "default", Name: evil}
	st = st.WithService(service(n, addr(10, 96, 20)))
	bad := service(sm.Name{Namespace: evil, Name: "a"}, addr(10, 96, 21))
	bad.Ports[0].Name = evil
	st = st.WithService(bad)
	eps := st.Endpoints(sm.Name{Namespace: "default", Name: "web"})
	eps[0].Node, eps[0].Zone = evil, evil
	st = st.WithEndpoints(sm.Name{Namespace: "default", Name: "web"}, eps)
	s := newShown(t, &page.Config{Conntrack: fakeConntrack{err: fmt.Errorf("no: %s", evil)},
		Node: found(nodechecks.Report{Findings: []nodechecks.Finding{{Check: evil,
			Severity: evil, Means: evil, Do: evil}}, Unknown: []string{evil}}),
		Hooks: func(context.Context) ([]hooks.Chain, error) {
			return []hooks.Chain{{Family: evil, Table: evil, Name: evil, Type: evil,
				Drops: []hooks.Rule{{Chain: evil, Comment: evil, Text: evil}}}}, nil
		}})
	s.backend.Refuse(func(c *sm.ChangeSet) error {
		web := sm.PortName{Name: sm.Name{Namespace: "default", Name: "web"}, Port: "http",
			Protocol: sm.TCP}
		if len(c.New.FrontendsOf(web)) == 0 {
			return nil
		}
		return &backends.UnsupportedError{Backend: evil,
			Service: sm.Name{Namespace: "default", Name: "web"}, Object: evil, Field: evil,
			Value: evil, Hint: evil}
	})

	s.engine.Set(st)
	q := url.QueryEscape(evil)
	paths := []string{"/", "/refused", "/recent", "/conntrack", "/node", "/hooks", "/?q=" + q,
		"/?show=" + q,
		"/?page=" + q, "/service?name=default/" + q, "/service?name=default/web&connections=1",
		"/trace?from=" + q + "&link=" + q + "&to=" + q, "/trace?from=10.0.0.1&link=" + q +
			"&to=10.96.0.10:80/tcp"}
	check := func() {
		for _, path := range paths {
			_, body := s.get(path)
			parse(t, body)
			require.NotContains(t, body, "<script", path)
			require.NotContains(t, body, "<img", path)
		}
	}

	check()
	_, err := s.engine.Apply(t.Context(), st) // refuses all
	require.NoError(t, err)
	check()
	_, body := s.get("/refused")
	require.Contains(t, parse(t, body).texts["td"], evil, "it is shown as it is")
}
