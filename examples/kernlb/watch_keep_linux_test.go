package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/internal/test/promised"
	"github.com/kernlb/kernlb/internal/test/servetest"
)

// refusedOne returns a service that nftables cannot express.
func refusedOne(name, ip string) string {
	return serviceManifest(name, ip, "annotations: {kernlb.io/scheduler: sed}", "")
}

// A service that the backend begins to refuse stays as it was, with its present endpoints, also
// after a restart. Everything else is applied. The log, the status and the page say so.
func TestWatchKeepsWhatIsRefused(t *testing.T) {
	t.Parallel()
	w := watching(t, "-listen", "127.0.0.1:0")
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.holds("10.96.0.1", "10.96.0.2")
	require.Eventually(t, func() bool { return w.status() == "" }, time.Minute,
		50*time.Millisecond)

	w.write("a.yaml", strings.ReplaceAll(refusedOne("a", "10.96.0.1"), "10.244.1.2", "10.244.1.7"))
	w.write("c.yaml", one("c", "10.96.0.3"))
	w.holds("10.96.0.1", "10.96.0.2", "10.96.0.3")
	require.Contains(t, w.show(), "10.244.1.7:8080")
	w.logs("service refused, and left as it was")
	const said = "refused: default/a, left as it was\n" +
		"  nftables cannot express service default/a:http: scheduler: sed " +
		"(nftables has random, rr, wrr, sh, mh, lc and wlc, and ipvs the others)\n"
	require.Equal(t, said, w.status())
	for _, probe := range []string{"/healthz", "/livez"} {
		get(t, w.ns, w.address(), w.address(), probe)
	}
	code, text := get(t, w.ns, w.address(), w.address(), "/metrics")
	promised.Check(t, "../..", "kernlb watch", text)
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "\nkernlb_refused_services 1\n")
	require.Contains(t, text, "\nkernlb_services{outcome=\"serve\"} 3\n")
	require.Contains(t, text, "\nkernlb_node_checks{check=\"forwarding\",severity=\"error\"} 1\n")
	_, text = get(t, w.ns, w.address(), w.address(), "/refused")
	require.Contains(t, text, "as it was before")

	w.halt()
	w.start()
	w.logs("listening")
	w.holds("10.96.0.1", "10.96.0.2", "10.96.0.3")
	require.Eventually(t, func() bool { return w.status() == said }, time.Minute,
		50*time.Millisecond, "%s", w.log)
	w.write("a.yaml", one("a", "10.96.0.9"))
	w.holds("10.96.0.9", "10.96.0.2", "10.96.0.3")
	require.Eventually(t, func() bool { return w.status() == "" }, time.Minute,
		50*time.Millisecond)
	w.write("a.yaml", refusedOne("a", "10.96.0.9"))
	w.write("d.yaml", refusedOne("d", "10.96.0.4"))
	require.Eventually(t, func() bool {
		return strings.Contains(w.status(), "refused: default/d, left out\n")
	}, time.Minute, 50*time.Millisecond)
	w.holds("10.96.0.9", "10.96.0.2", "10.96.0.3")
}

// status returns the output of the command status after its first two lines, without an error and
// without the checks of the node, which does not forward.
func (w *watched) status() string {
	w.t.Helper()
	c, out := process(w.t, w.ns, "status", "-page", "http://"+w.address())
	_ = c.Wait() // the exit code says whether there are problems
	_, rest, _ := strings.Cut(out.String(), "\n")
	_, rest, _ = strings.Cut(rest, "\n")
	rest, _, _ = strings.Cut(rest, "this node: ")
	return rest
}

// A service that apply put into the kernel stays, even if a program that starts refuses it and does
// not know its earlier definition.
func TestWatchKeepsWhatWasAppliedBefore(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "-listen", "127.0.0.1:0")
	done(t, w.ns, one("a", "10.96.0.1"), "apply -f -")
	w.write("a.yaml", refusedOne("a", "10.96.0.1"))
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.start()
	w.logs("the kernel stays as it is until the service is accepted or removed")
	w.holds("10.96.0.1")
	require.Contains(t, w.status(), "problem: the kernel stays as it is: refused now, and nothing "+
		"says what they were: default/a\n")
	w.write("a.yaml", one("a", "10.96.0.3"))
	w.holds("10.96.0.2", "10.96.0.3")
}

// The directory of the copies is made again if somebody removes it.
func TestWatchMakesItsCopiesAgain(t *testing.T) {
	t.Parallel()
	w := watching(t)
	require.NoError(t, os.RemoveAll(w.args[slices.Index(w.args, "-copies")+1]))
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.holds("10.96.0.1", "10.96.0.2")
	w.halt()
	w.write("b.yaml", "kind: [")
	w.start()
	w.logs("broken manifest: its services stay as they were")
}

// The copy of a file that went while no program ran does not bring its services back.
func TestWatchForgetsFilesThatWent(t *testing.T) {
	t.Parallel()
	w := watching(t)
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.holds("10.96.0.1", "10.96.0.2")
	w.halt()
	require.NoError(t, os.Remove(filepath.Join(w.dir, "a.yaml")))
	w.start()
	w.holds("10.96.0.2")
	w.write("a.yaml", "kind: [")
	w.logs("broken manifest: no whole version of it is known")
	w.write("b.yaml", one("b", "10.96.0.22"))
	w.holds("10.96.0.22")
	w.halt()
	w.start()
	w.logs("broken manifest: no whole version of it is known")
	w.holds("10.96.0.22")
}

// A version that cannot be kept does not leave an older one in its place.
func TestCopiesAreNotOld(t *testing.T) {
	t.Parallel()
	c := newCopies(t.TempDir(), "", "", slog.New(slog.DiscardHandler))
	c.save("a.yaml", []byte("old"))
	data, known := c.load("a.yaml")
	require.True(t, known)
	require.Equal(t, "old", string(data))
	require.NoError(t, os.Mkdir(filepath.Join(c.dir, "a.yaml.new"), 0o700)) // it is in the way
	c.save("a.yaml", []byte("new"))
	_, known = c.load("a.yaml")
	require.False(t, known)
}

// With -strict, a refused service keeps everything else back.
func TestWatchIsStrictIfAskedTo(t *testing.T) {
	t.Parallel()
	w := watching(t, "-strict")
	w.write("a.yaml", refusedOne("a", "10.96.0.1"))
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.logs("apply failed")
	w.holds("10.96.0.1")
	w.write("a.yaml", one("a", "10.96.0.1"))
	w.holds("10.96.0.1", "10.96.0.2")
}

// Broken files, useless files and a missing directory are problems.
func TestWatchTellsItsProblems(t *testing.T) {
	t.Parallel()
	w := watching(t, "-listen", "127.0.0.1:0")
	w.write("b.yaml", one("b", "10.96.0.2"))
	w.holds("10.96.0.1", "10.96.0.2")
	says := func(texts ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			out := w.status()
			for _, s := range texts {
				if !strings.Contains(out, s) {
					return false
				}
			}

			return strings.Count(out, "problem: ") == len(texts)
		}, time.Minute, 50*time.Millisecond, "%v\n%s", texts, w.log)
	}

	says()
	w.write("a.yaml", "kind: [")
	says("problem: a.yaml: broken manifest: its services stay as they were; a.yaml:1: ")
	w.write("c.yaml", one("b", "10.96.0.3"))
	w.logs("c.yaml:3: document 1: Service default/b: is in b.yaml:3, too; that of c.yaml counts")
	says("a.yaml: broken", "b.yaml:3: document 1: Service default/b: does not count: it is in "+
		"c.yaml:3", "b.yaml:8: document 2: EndpointSlice default/b: does not count")
	_, text := get(t, w.ns, w.address(), w.address(), "/metrics")
	require.Contains(t, text, "\nkernlb_input_problems 3\n")
	_, text = get(t, w.ns, w.address(), w.address(), "/healthz")
	require.Contains(t, text, `"problems":["a.yaml: broken manifest`)
	_, text = get(t, w.ns, w.address(), w.address(), "/")
	require.Contains(t, text, "3 problems")
	w.halt()
	c, out := process(t, w.ns, "status", "-page", "http://"+w.address())
	require.EqualError(t, c.Wait(), "exit status 1")
	require.Contains(t, out.String(), "no program answers; kernlb watch -listen would")
}

var listening = regexp.MustCompile(`msg=listening address=http://(\S+)`)

// address waits until the program listens, and returns the address.
func (w *watched) address() string {
	w.t.Helper()
	w.logs("msg=listening")
	return listening.FindStringSubmatch(w.log.String())[1]
}

// get requests a path of a program's page in a namespace, with a Host header, and returns the code
// and the body. The path may have POST before it.
func get(t *testing.T, ns *netnstest.NS, at, host, path string) (code int, body string) {
	t.Helper()
	method, path, post := strings.Cut(path, " ")
	if !post {
		method, path = http.MethodGet, method
	}
	r := ok(http.NewRequestWithContext(t.Context(), method, "http://"+at+path, nil))(t)
	r.Host = host
	a := ok((&http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, at string) (conn net.Conn, err error) {
			err = ns.Do(func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, network, at)
				return err
			})
			return conn, err
		}}).RoundTrip(r))(t)
	defer a.Body.Close()
	return a.StatusCode, string(ok(io.ReadAll(a.Body))(t))
}

func TestWatchServesAPage(t *testing.T) {
	t.Parallel()
	w := watching(t, "-listen", "127.0.0.1:0")
	at := w.address()
	require.Eventually(t, func() bool {
		_, body := get(t, w.ns, at, at, "/services.json")
		return regexp.MustCompile(`"condition": "ok"`).MatchString(body)
	}, time.Minute, 20*time.Millisecond)

	for path, want := range map[string]string{
		"/":                       "default/a",
		"/service?name=default/a": "10.96.0.1:80/tcp",
		"/recent":                 "10.96.0.1:80/tcp",
		"/conntrack":              " connections",
		"/healthz":                `"nodeEligible":true`,
		"/livez":                  `"healthy":true`,
		"/trace?from=127.0.0.1&to=10.96.0.1:80/tcp": "127.0.0.1 is an address of this node",
	} {
		code, body := get(t, w.ns, at, at, path)
		require.Equal(t, http.StatusOK, code, path)
		require.Contains(t, body, want, path)
	}

	code, body := get(t, w.ns, at, at, "/service?name=default/a&counters=1")
	require.Equal(t, http.StatusNotFound, code)
	require.Contains(t, body, "counters are off")
	done(t, w.ns, "", "count")
	code, _ = get(t, w.ns, at, at, "/service?name=default/a&counters=1")
	require.Equal(t, http.StatusOK, code)
	code, _ = get(t, w.ns, at, "evil.example", "/")
	require.Equal(t, http.StatusMisdirectedRequest, code)
}

func TestWatchListensToOthersIfAskedTo(t *testing.T) {
	t.Parallel()
	w := watching(t, "-listen", "0.0.0.0:0", "-listen-anywhere")
	_, port, err := net.SplitHostPort(w.address())
	require.NoError(t, err)
	code, _ := get(t, w.ns, "127.0.0.1:"+port, "node.example", "/")
	require.Equal(t, http.StatusOK, code)
	fails(t, w.ns, "", exitFailed, "-listen: listen tcp 127.0.0.1:"+port+": bind: address "+
		"already in use", strings.Join(w.args, " ")+" -listen 127.0.0.1:"+port)
}

func TestHostileClientsOfThePage(t *testing.T) {
	t.Parallel()
	w := &watcher{log: slog.New(slog.DiscardHandler)}
	shown := page.New(nil, nil)
	servetest.Hostile(t, "/", maxConns, func(l net.Listener) func() {
		return w.serve(l, page.Loopback(shown))
	})
}
