package page_test

import (
	"bytes"
	"context"
	"flag"
	"image"
	"image/color"
	"image/png"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/conntrack"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/dataplane/page"
	"github.com/kernlb/kernlb/nftables"
	sm "github.com/kernlb/kernlb/servicemodel"
)

var update = flag.Bool("update", false, "make the pictures in docs anew")

// The pictures in docs/page.md show the current pages of an engine that runs on nftables. -update
// makes them.
func TestBrowserPictures(t *testing.T) {
	t.Parallel()
	if !*update {
		t.Skip("makes pictures: needs -update")
	}
	c, site := startChromium(t), running(t)
	for name, p := range map[string]struct {
		path, scheme string
		height       int
	}{
		"services": {"/", "light", 640},
		"service":  {"/service?name=default/web", "dark", 660},
		"trace":    {"/trace?from=203.0.113.9&to=192.168.0.1:30080/tcp", "light", 760},
	} {
		c.look(1000, p.height, p.scheme)
		c.open(site + p.path)
		picture := ok(png.Decode(bytes.NewReader(c.screenshot())))(t)
		var b bytes.Buffer
		require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b,
			fewColours(picture)))
		require.NoError(t, os.WriteFile(filepath.Join("..", "..", "docs", "page-"+name+".png"),
			b.Bytes(), 0o644))
	}
}

// fewColours returns a picture with only its 32 most frequent colours, in a third of the bytes.
func fewColours(from image.Image) image.Image {
	counts := map[color.Color]int{}
	r := from.Bounds()
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			counts[from.At(x, y)]++
		}
	}
	var all color.Palette
	for c := range counts {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.Color) int { return counts[b] - counts[a] })
	to := image.NewPaletted(r, all[:min(len(all), 32)])
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			to.Set(x, y, from.At(x, y))
		}
	}
	return to
}

// running serves the page of an engine that runs on nftables, in a network namespace.
func running(t *testing.T) string {
	t.Helper()
	netnstest.Require(t)
	ns := ok(netnstest.NewNS("n1"))(t)
	t.Cleanup(func() { ns.Close() })
	backend := ok(nftables.New(&nftables.Config{NetNS: ns.Fd()}))(t)
	t.Cleanup(func() { backend.Close() })
	table := ok(conntrack.Open(&conntrack.Config{NetNS: ns.Fd()}))(t)
	t.Cleanup(func() { table.Close() })
	engine := dataplane.New(backend, nil)
	shown := page.New(engine, &page.Config{Conntrack: table, Addresses: here,
		Hooks: func(ctx context.Context) ([]hooks.Chain, error) {
			return hooks.Read(ctx, &hooks.Config{NetNS: ns.Fd()}, nil)
		}})
	t.Cleanup(func() { require.NoError(t, shown.Close()) })
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	t.Cleanup(func() {
		stop()
		work.Wait()
	})
	work.Go(func() { _ = engine.Run(ctx, nil) }) // it returns the context's error
	require.NoError(t, engine.Wait(t.Context(), engine.Set(shop())))
	require.Eventually(t, func() bool { return engine.Status().Running }, patience, patience/1000)
	site := httptest.NewServer(shown)
	t.Cleanup(site.Close)
	return site.URL
}

// shop is a state like that of a small cluster. One service has no endpoints, and one loses its
// node port to another.
func shop() sm.State {
	st := web()
	for i, s := range []struct {
		namespace, name string
		ports           []sm.ServicePort
		endpoints       int
	}{
		{"default", "cart", []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80}}, 0},
		{"default", "web-next", []sm.ServicePort{{Name: "http", Protocol: sm.TCP, Port: 80,
			NodePort: 30080}}, 2},
		{"kube-system", "dns", []sm.ServicePort{{Name: "dns", Protocol: sm.UDP, Port: 53},
			{Name: "dns-tcp", Protocol: sm.TCP, Port: 53}}, 2},
		{"monitoring", "prometheus", []sm.ServicePort{{Name: "http", Protocol: sm.TCP,
			Port: 9090}}, 1},
	} {
		n := sm.Name{Namespace: s.namespace, Name: s.name}
		svc := service(n, addr(10, 96, 11+i))
		svc.Ports = s.ports
		var eps []sm.Endpoint
		for j := range s.endpoints {
			e := sm.Endpoint{Addr: addr(10, 244, 16*(i+1)+j), Ready: true, Node: "n2"}
			for _, p := range s.ports {
				e.Ports = append(e.Ports, sm.EndpointPort{Name: p.Name, Protocol: p.Protocol,
					Port: 8000 + p.Port})
			}
			eps = append(eps, e)
		}
		st = st.WithService(svc).WithEndpoints(n, eps)
	}
	return st
}
