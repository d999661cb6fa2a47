package page_test

import (
	"bytes"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/node"
	"github.com/kernlb/kernlb/dataplane/page"
)

var update = flag.Bool("update", false, "make the pictures in docs anew")

// audit is JavaScript that reports faults in the look of a page: texts with too little contrast
// (below 4.5 to 1, WCAG 2.2, 1.4.3), elements wider than the window, and elements that moved during
// loading by more than the limit of web.dev/articles/cls, 0.1. A slow machine shows a table before
// its last row is read: its columns moved by 0.012.
const audit = `(() => {
	const wrong = []
	const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
	const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2])
	const rgba = s => [...s.match(/[\d.]+/g).map(Number), 1].slice(0, 4)
	const behind = e => {
		for (; e; e = e.parentElement) {
			const c = rgba(getComputedStyle(e).backgroundColor)
			if (c[3] > 0) return c
		}
		return [255, 255, 255, 1]
	}
	for (const e of document.querySelectorAll("body *")) {
		const own = [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())
		if (!own || !e.checkVisibility() || e.tagName == "METER" || e.tagName == "OPTION") continue
		const a = light(rgba(getComputedStyle(e).color)), b = light(behind(e))
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
		if (contrast < 4.5) wrong.push(e.outerHTML + " has contrast " + contrast.toFixed(1))
	}
	const page = document.documentElement
	if (page.scrollWidth > page.clientWidth) wrong.push("wider than the window")
	for (const e of document.querySelectorAll(".cause, .state, .verdict, .bad, .warn")) {
		const right = e.getBoundingClientRect().right
		if (right > page.clientWidth) wrong.push(e.outerHTML + " ends at " + right)
	}
	const seen = new PerformanceObserver(() => {})
	seen.observe({type: "layout-shift", buffered: true})
	const moved = seen.takeRecords().reduce((sum, s) => sum + s.value, 0)
	if (moved > 0.1) wrong.push("moved: " + moved)
	return wrong
})()`

// Every page is readable, in light and dark, in wide and narrow windows, with all states and
// causes: with enough contrast, without movement, and without anything that its own policy blocks.
func TestBrowserShowsEveryPage(t *testing.T) {
	t.Parallel()
	c, site := startChromium(t), serve(t)
	for _, path := range []string{"/", "/?show=problems", "/?q=nothing", "/service",
		"/service?name=default/x_y", "/service?name=default/web&connections=1",
		"/service?name=default/web&counters=1", "/refused",
		"/recent", "/conntrack", "/node", "/hooks", "/trace",
		"/trace?from=10.244.1.5&to=10.96.0.11:80/tcp"} {
		for scheme, width := range map[string]int{"light": 1200, "dark": 500} {
			c.look(width, 900, scheme)
			c.open(site + path)
			var wrong []string
			c.eval(audit, &wrong)
			assert.Empty(t, wrong, "%s, %s, %d wide", path, scheme, width)
		}
	}

	said := slices.DeleteFunc(c.said, func(s string) bool {
		return bytes.Contains([]byte(s), []byte("status of 400")) // "/service" has no name
	})
	require.Empty(t, said, "the browser complains about nothing")
}

// A keyboard is enough: the first key skips the navigation; a search and a trace work.
func TestBrowserWithAKeyboard(t *testing.T) {
	t.Parallel()
	c, site := startChromium(t), serve(t)
	c.look(1200, 900, "light")
	c.open(site + "/")
	c.press("Tab")
	require.Equal(t, "Skip to the content", c.text("document.activeElement.textContent"))
	var visible bool
	c.eval("document.activeElement.getBoundingClientRect().left >= 0", &visible)
	require.True(t, visible)
	c.press("Enter")
	c.press("Tab")
	require.Equal(t, "q", c.text("document.activeElement.id"))
	c.write("10.244.0.1")
	c.loaded(func() { c.press("Enter") })
	const found = "document.querySelector('[role=status]').textContent"
	require.Equal(t, "1 service found", c.text(found))
	require.Equal(t, "10.244.0.1", c.text("document.getElementById('q').value"))

	c.open(site + "/service?name=default/shop")
	c.eval("document.querySelector('main th a').focus() ?? true", new(bool))
	c.loaded(func() { c.press("Enter") })
	require.Equal(t, "10.96.0.11:80/tcp", c.text("document.getElementById('to').value"))
	c.eval("document.getElementById('from').focus() ?? true", new(bool))
	c.write("10.244.1.5")
	c.loaded(func() { c.press("Enter") })
	require.Equal(t, "rejected: the service has no endpoints",
		c.text("document.querySelector('.step-outcome td').textContent"))
}

// On request a page reloads itself and keeps the search. The test watches the browser's requests at
// the server, because it cannot evaluate anything in a page that may reload at any moment.
func TestBrowserRefreshes(t *testing.T) {
	t.Parallel()
	c, s, asked := startChromium(t), holding(t, broken(), nil), make(chan string, 100)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.URL.String():
		default:
		}

		s.ServeHTTP(w, r)
	}))
	t.Cleanup(site.Close)
	c.look(1200, 900, "light")
	c.open(site.URL + "/?q=10.244.0.1")
	c.eval("document.getElementById('refresh').click() ?? true", new(bool))
	for n, end := 0, time.After(patience); n < 3; {
		select {
		case url := <-asked:
			if url == "/?q=10.244.0.1&refresh=on" {
				n++
			}
		case <-end:
			require.Fail(t, "the page is not loaded again")
		}
	}
}

// The pictures in docs/page.md show the current pages. -update takes new pictures.
func TestBrowserPictures(t *testing.T) {
	t.Parallel()
	if !*update {
		t.Skip("makes pictures: needs -update")
	}
	c, site := startChromium(t), serve(t)
	for _, p := range []struct{ name, path, scheme string }{
		{"services", "/", "light"},
		{"service", "/service?name=default/web", "dark"},
		{"trace", "/trace?from=203.0.113.9&to=192.168.0.1:30080/tcp", "light"},
	} {
		c.look(1000, 720, p.scheme)
		c.open(site + p.path)
		var r struct{ Data []byte }
		c.call("Page.captureScreenshot", `{"format": "png"}`, &r)
		require.NoError(t, os.WriteFile("../../docs/page-"+p.name+".png", r.Data, 0o644))
	}
}

// serve serves a page with some services, some of them broken.
func serve(t *testing.T) string {
	t.Helper()
	st := broken()
	for svc := range many(8, 3).Services() {
		st = st.WithService(svc).WithEndpoints(svc.Name, many(8, 3).Endpoints(svc.Name))
	}
	s := holding(t, st, &page.Config{Conntrack: connected(), Addresses: here, Counters: used(),
		Hooks: chains, Node: found(node.Report{Findings: findings})})
	site := httptest.NewServer(s)
	t.Cleanup(site.Close)
	return site.URL
}
