package graph_test

import (
	"encoding/xml"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/graph"
	"github.com/kernlb/kernlb/dataplane/hooks"
	"github.com/kernlb/kernlb/internal/test/randstate"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// area is a rectangle of a picture.
type area struct {
	what           string
	x1, y1, x2, y2 float64
}

func (a area) meets(b area) bool {
	return a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2
}

// has reports whether a point is inside the area, and not on its edge.
func (a area) has(p point) bool {
	return p.x > a.x1+1 && p.x < a.x2-1 && p.y > a.y1+1 && p.y < a.y2-1
}

type point struct{ x, y float64 }

// picture contains the visible shapes of a drawing.
type picture struct {
	Texts []shape `xml:"text"`
	Boxes []struct {
		Rect  shape   `xml:"rect"`
		Texts []shape `xml:"text"`
	} `xml:"g"`
	Paths []shape `xml:"path"`
}

type shape struct {
	X      float64 `xml:"x,attr"`
	Y      float64 `xml:"y,attr"`
	Width  float64 `xml:"width,attr"`
	Height float64 `xml:"height,attr"`
	Anchor string  `xml:"text-anchor,attr"`
	Class  string  `xml:"class,attr"`
	D      string  `xml:"d,attr"`
	Text   string  `xml:",chardata"`
}

// text returns the area of a text: in a font of 12 px, characters are 7.2 px wide; the texts of
// arrows have a font of 11 px.
func (s shape) text() area {
	size := 12.0
	if s.Class == "on" {
		size = 11
	}
	width := 0.6 * size * float64(len([]rune(s.Text)))
	x := s.X
	if s.Anchor == "end" {
		x -= width
	}
	return area{s.Text, x, s.Y - 0.8*size, x + width, s.Y + 0.25*size}
}

var command = regexp.MustCompile(`([MHVC])([-0-9. ]+)`)

// lines returns points of a path, a pixel apart where it is straight.
func (s shape) lines() (out []point) {
	var at point
	for _, c := range command.FindAllStringSubmatch(s.D, -1) {
		var n []float64
		for _, word := range strings.Fields(c[2]) {
			v, _ := strconv.ParseFloat(word, 64)
			n = append(n, v)
		}

		bend := []point{at, at, at, at}
		switch c[1] {
		case "M":
			at = point{n[0], n[1]}
			continue
		case "H":
			bend[2].x, bend[3].x = n[0], n[0]
		case "V":
			bend[2].y, bend[3].y = n[0], n[0]
		case "C":
			bend = []point{at, {n[0], n[1]}, {n[2], n[3]}, {n[4], n[5]}}
		}

		steps := int(abs(bend[3].x-at.x) + abs(bend[3].y-at.y) + 1)
		for i := range steps + 1 {
			t := float64(i) / float64(steps)
			u := 1 - t
			out = append(out, point{
				u*u*u*bend[0].x + 3*u*u*t*bend[1].x + 3*u*t*t*bend[2].x + t*t*t*bend[3].x,
				u*u*u*bend[0].y + 3*u*u*t*bend[1].y + 3*u*t*t*bend[2].y + t*t*t*bend[3].y})
		}

		at = bend[3]
	}

	return out
}

func abs(v float64) float64 { return max(v, -v) }

// readable requires that no line crosses a text or a box, and that no two texts or boxes meet.
func readable(t *testing.T, svg string) (labels int) {
	t.Helper()
	var p picture
	require.NoError(t, xml.Unmarshal([]byte(svg), &p))
	var texts, boxes []area
	for _, s := range p.Texts {
		texts = append(texts, s.text())
		if s.Class == "on" {
			labels++
		}
	}

	for _, b := range p.Boxes {
		r := b.Rect
		boxes = append(boxes, area{b.Texts[0].Text, r.X, r.Y, r.X + r.Width, r.Y + r.Height})
		for _, s := range b.Texts {
			in := s.text()
			require.True(t, in.x1 > r.X && in.y1 > r.Y && in.x2 < r.X+r.Width &&
				in.y2 < r.Y+r.Height, "%q is in its box", s.Text)
		}
	}

	all := slices.Concat(texts, boxes)
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.meets(b) {
				require.Fail(t, "texts or boxes meet", "%q and %q", a, b)
			}
		}
	}

	for _, path := range p.Paths {
		for _, at := range path.lines() {
			for _, a := range all {
				if a.has(at) {
					require.Fail(t, "a line crosses a text", "%s and %q", path.D, a)
				}
			}
		}
	}

	return labels
}

// Lines cross no text, whatever the services and chains are.
func TestTextsCanBeRead(t *testing.T) {
	t.Parallel()
	many := randstate.Config{Services: 12, EndpointPorts: []uint16{80, 81}, Weights: true,
		Node: sm.Node{Name: "n1"}}
	for i := range byte(8) {
		many.Places = append(many.Places, randstate.Place{Node: fmt.Sprint("n", i/4),
			IPv4: netip.AddrFrom4([4]byte{10, 244, 0, i}),
			IPv6: netip.AddrFrom16([16]byte{0xfd, 15: i})})
	}

	labels := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		table, err := sm.Resolve(nil, randstate.New(many, rng).State())
		require.NoError(t, err)
		labels += readable(t, graph.Services(table, nil).SVG())
		labels += readable(t, graph.Hooks(chosen(rng), sm.IPv4, ours).SVG())
	}

	require.Greater(t, labels, 500)
	readable(t, graph.Services(shared(t, 8), nil).SVG())
	readable(t, graph.Services(shared(t, 200), nil).SVG())
}

// chosen returns some chains in any order.
func chosen(rng *rand.Rand) (out []hooks.Chain) {
	for _, c := range slices.Concat(chains(), chains()) {
		if rng.IntN(3) == 0 {
			out = append(out, c)
		}
	}

	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// shared is a table of services in five namespaces, with the same two endpoints. Every tenth
// service has no endpoints.
func shared(t testing.TB, services int) *sm.Table {
	t.Helper()
	st := sm.State{}
	for i := range services {
		n := sm.Name{Namespace: fmt.Sprint("team-", i%5), Name: fmt.Sprint("s", i)}
		st = st.WithService(&sm.Service{Name: n,
			Ports:      []sm.ServicePort{{Protocol: sm.TCP, Port: 80}},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}})
		if i%10 != 9 {
			st = st.WithEndpoints(n, []sm.Endpoint{endpointOf(1), endpointOf(2)})
		}
	}

	table, err := sm.Resolve(nil, st)
	require.NoError(t, err)
	return table
}

func endpointOf(i byte) sm.Endpoint {
	return sm.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, i}),
		Ports: []sm.EndpointPort{{Protocol: sm.TCP, Port: 8080}}}
}

// With more than 30 service ports, each namespace has a row of numbers.
func TestManyServicesAreGrouped(t *testing.T) {
	t.Parallel()
	require.Contains(t, graph.Services(shared(t, 30), nil).Mermaid(), "team-3/s3")
	svg := graph.Services(shared(t, 1000), nil).SVG()
	texts := wellFormed(t, svg)
	for _, text := range []string{"team-4", "200 service ports", "200 frontends", "100 pools",
		"2 endpoints", "rejected", "team-4/s109", "and 97 more", "100"} {
		require.Contains(t, texts, text)
	}

	require.NotContains(t, texts, "team-3/s3")
	require.Less(t, len(svg), 10_000)
}
