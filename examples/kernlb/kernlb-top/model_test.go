package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/counters"
	"github.com/kernlb/kernlb/internal/test/golden"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

var began = time.Date(2026, 1, 2, 12, 30, 0, 0, time.UTC)

func name(i int) servicemodel.Name {
	return servicemodel.Name{Namespace: "shop", Name: fmt.Sprintf("app-%02d", i)}
}

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}) }

func pod(i, j int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), byte(j)}), 8080)
}

func web(i int) *servicemodel.Service {
	return &servicemodel.Service{Name: name(i), ClusterIPs: []netip.Addr{address(i)},
		Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
}

func endpoint(a netip.Addr) servicemodel.Endpoint {
	return servicemodel.Endpoint{Addr: a,
		Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 8080}}}
}

// services is a table of n services of three endpoints.
func services(t *testing.T, n int) *servicemodel.Table {
	t.Helper()
	s := servicemodel.State{}.WithNode(servicemodel.Node{Name: "n1"})
	for i := range n {
		var eps []servicemodel.Endpoint
		for j := range 3 {
			eps = append(eps, endpoint(pod(i, j).Addr()))
		}
		s = s.WithService(web(i)).WithEndpoints(name(i), eps)
	}

	return must.OK(servicemodel.Resolve(nil, s))(t)
}

// had returns a reading after that many seconds. The i-th service has i connections a second, half
// of them to its first endpoint. The first service has none.
func had(table *servicemodel.Table, n, seconds int) *sample {
	r := counters.Reading{Pairs: map[counters.Pair]counters.Values{}}
	for i := range n {
		for j, share := range []int{2, 1, 1} {
			c := uint64(i * share * (seconds + 1))
			r.Pairs[counters.Pair{Protocol: servicemodel.TCP,
				Dst: netip.AddrPortFrom(address(i), 80), Endpoint: pod(i, j)}] = counters.Values{
				Connections: c / 4, PacketsIn: 5 * c, BytesIn: 2000 * c, PacketsOut: 4 * c,
				BytesOut: 300 * uint64(n-i) * c}
		}
	}

	return &sample{at: began.Add(time.Duration(seconds) * time.Second), backend: "nftables",
		table: table, sums: r.Of(table, nil)}
}

func events() recent {
	return recent{Events: []event{
		{Time: began, Kind: "applied", Duration: "62.4µs",
			Counts: servicemodel.Counts{Added: 1},
			Changes: []string{"~ pool shop/app-07/tcp IPv4 cluster: slot 2: none -> 10.0.0.1:80",
				"+ frontend 10.96.0.70:80/tcp shop/app-070 cluster-ip -> cluster"}},
		{Time: began.Add(-time.Minute), Kind: "applied", Duration: "3.1ms"},
		{Time: began.Add(-time.Hour), Kind: "refused", Text: "default/x_y: invalid"},
	}}
}

// screen returns a model without colours, of this size, after two readings.
func screen(t *testing.T, width, height int) *model {
	t.Helper()
	r := lipgloss.NewRenderer(io.Discard)
	r.SetColorProfile(termenv.Ascii)
	m := newModel(&options{interval: 4 * time.Second}, r)
	m.read = func() tea.Msg { return nil }
	table := services(t, 20)
	tell(m, tea.WindowSizeMsg{Width: width, Height: height},
		readMsg{had(table, 20, 0), events(), 0, nil}, readMsg{had(table, 20, 4), events(), 0, nil})
	return m
}

func tell(m *model, all ...tea.Msg) {
	for _, msg := range all {
		m.Update(msg)
	}
}

// press presses keys, such as "j" or "enter".
func press(m *model, keys ...string) {
	types := map[string]tea.KeyType{"enter": tea.KeyEnter, "esc": tea.KeyEsc, "up": tea.KeyUp,
		"down": tea.KeyDown, "pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "end": tea.KeyEnd,
		"home": tea.KeyHome, "backspace": tea.KeyBackspace}
	for _, k := range keys {
		if typ, special := types[k]; special {
			m.Update(tea.KeyMsg{Type: typ})
			continue
		}

		m.Update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(k)})
	}
}

// Whatever keys are pressed, the drawing fits on the screen.
func TestScreens(t *testing.T) {
	t.Parallel()
	for file, keys := range map[string][]string{
		"list":    nil,
		"bytes":   {"b"},
		"names":   {"n", "pgdown", "down"},
		"packets": {"p", "end", "up"},
		"filter":  {"/", "0", "9", "backspace"},
		"found":   {"/", "-", "0", "7", "enter"},
		"none":    {"/", "x", "enter"},
		"detail":  {"/", "-", "0", "7", "enter", "enter"},
		"back":    {"down", "enter", "esc"},
		"paused":  {" "},
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			m := screen(t, 100, 18)
			press(m, keys...)
			require.Equal(t, 17, strings.Count(m.View(), "\n"))
			golden.File(t, filepath.Join("testdata", file+".txt"), drawn(t, m))
		})
	}
}

// At 80 columns nothing is cut: neither a column that the list can be sorted by, nor the port of an
// endpoint with an address of IPv6.
func TestNarrowAndWideScreens(t *testing.T) {
	t.Parallel()
	for _, width := range []int{80, 120} {
		m := screen(t, width, 24)
		for _, order := range []string{"c", "p", "b", "n"} {
			press(m, order)
			view := drawn(t, m)
			require.NotContains(t, view, "…")
			require.Contains(t, view, "q: quit")
			require.Equal(t, width == 120, strings.Contains(view, "CONNECTIONS"))
		}

		press(m, "c", "enter")
		require.Contains(t, drawn(t, m), "  -> 10.244.19.0:8080 ")
		for _, address := range []string{"[fd00:10:244:1::2]:8080",
			"[2001:db8:1234:5678:9abc:def0:1234:5678]:65535"} {
			row := m.row("  -> ", address, "100.0 %", rates{})
			require.LessOrEqual(t, lipgloss.Width(row), width)
			require.Contains(t, row, address[len(address)-20:]+" ")
		}
	}
}

// drawn returns the screen of a model without the spaces at the ends of lines.
func drawn(t *testing.T, m *model) string {
	t.Helper()
	var trimmed strings.Builder
	for l := range strings.Lines(m.View()) {
		require.LessOrEqual(t, lipgloss.Width(strings.TrimSuffix(l, "\n")), m.width)
		trimmed.WriteString(strings.TrimRight(l, " \n") + "\n")
	}

	return trimmed.String()
}

// The document has the present screen.
func TestTheDocumentHasAScreen(t *testing.T) {
	t.Parallel()
	golden.Block(t, "../../../docs/kernlb.md", "top", drawn(t, screen(t, 100, 15)))
}

// Each size of the terminal is filled and not exceeded, and the selected service stays on it.
func TestSizes(t *testing.T) {
	t.Parallel()
	m := screen(t, 100, 30)
	press(m, "n", "end")
	for _, size := range [][2]int{{200, 60}, {80, 24}, {60, 12}, {30, 8}, {5, 3}, {1, 1},
		{80, 24}} {
		tell(m, tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for range 2 {
			view := m.View()
			require.LessOrEqual(t, strings.Count(view, "\n")+1, size[1])
			for l := range strings.SplitSeq(view, "\n") {
				require.LessOrEqual(t, lipgloss.Width(l), size[0])
			}
			if size[1] > 8 && !m.detail {
				require.Contains(t, view, "> shop/app-19")
			}
			press(m, "enter")
		}

		press(m, "esc")
	}
}

// The screen names what cannot be read, and keeps the previous reading.
func TestWhatIsNotKnownIsNamed(t *testing.T) {
	t.Parallel()
	m := screen(t, 100, 18)
	tell(m, readMsg{nil, recent{why: "no page at there"}, 0, errors.New("the kernel is busy")})
	require.Contains(t, m.View(), "not read: the kernel is busy")
	require.Contains(t, m.View(), "shop/app-19")
	table := services(t, 2)
	tell(m, readMsg{&sample{at: began, backend: "ipvs", table: table},
		recent{why: "no page at there"}, 0, nil})
	require.Contains(t, m.View(), "nothing is counted: kernlb count switches that on")
	require.NotContains(t, m.View(), "shop/app-19", "it is gone")
	press(m, "enter")
	require.Contains(t, m.View(), "shop/app-0")
	press(m, "esc")
	tell(m, readMsg{had(table, 2, 1), recent{why: "no page at there"}, 0, nil})
	require.Contains(t, m.View(), "latencies are not known: no page at there")
	require.NotContains(t, m.View(), "NaN", "one reading has no rates")
	full := had(table, 2, 2)
	full.full = true
	tell(m, readMsg{full, events(), 0, nil})
	require.Contains(t, m.View(), "more frontends and endpoints than are counted")
}

// If the service that is shown alone is gone, all services are shown, and not another service in
// its place.
func TestAServiceThatIsShownAloneGoes(t *testing.T) {
	t.Parallel()
	m := screen(t, 100, 18)
	press(m, "n", "end", "enter")
	require.Contains(t, m.View(), "\n  shop/app-19")
	tell(m, readMsg{had(services(t, 2), 2, 9), events(), 0, nil})
	require.Contains(t, m.View(), "> shop/app-00")
	require.Contains(t, m.View(), "  shop/app-01")
}

// A pause stops readings, and q ends the program.
func TestPauseAndQuit(t *testing.T) {
	t.Parallel()
	m := screen(t, 100, 18)
	require.Equal(t, 4*time.Second, m.wait())
	tell(m, readMsg{m.between.now, events(), 2 * time.Second, nil})
	require.Equal(t, 8*time.Second, m.wait(), "a fifth of the time is for reading")
	read := 0
	m.read = func() tea.Msg { read++; return nil }
	_, cmd := m.Update(tickMsg{})
	cmd()
	require.Equal(t, 1, read)
	press(m, " ")
	before := m.View()
	tell(m, readMsg{had(services(t, 3), 3, 9), events(), 0, nil})
	require.Equal(t, before, m.View())
	for _, k := range []tea.KeyMsg{{Type: tea.KeyRunes, Runes: []rune("q")}, {Type: tea.KeyCtrlC}} {
		_, cmd = m.Update(k)
		require.Equal(t, tea.QuitMsg{}, cmd())
	}

	press(m, "/", "q")
	require.Contains(t, m.View(), "filter: q_")
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 7: "7", 0.25: "0.2", 999: "999", 999.96: "1.0k",
		12345: "12.3k", 5e6: "5.0M", 7.25e10: "72.5G"} {
		require.Equal(t, want, short(v))
	}

	require.Zero(t, counters.Values{Connections: 2}.Since(counters.Values{Connections: 9}),
		"counters that restarted count from zero")
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{"-interval 1ms": "-interval: 1ms",
		"-backend x": `-backend: there is no backend "x"`,
		"x":          `unknown argument "x"`, "-page ftp://x": "-page:"} {
		var o options
		err := o.parse(strings.Fields(args), io.Discard)
		if err == nil {
			_, err = newPage(o.page)
		}
		require.ErrorContains(t, err, want)
	}
}
