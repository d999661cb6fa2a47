package main

import (
	"slices"
	"strings"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"

	"github.com/kernlb/kernlb/servicemodel"
)

// model is the contents of the screen. Update changes it after an event, and View draws it. Neither
// reads the kernel.
type model struct {
	interval time.Duration
	read     func() tea.Msg // returns a readMsg
	styles   styles

	width, height int
	between       between
	recent        recent
	err           error
	took          time.Duration // the last reading
	all           []service     // of the last table, by name
	sum           rates         // of all

	shown    []service // the services that match the filter, sorted
	order    string    // a key of orders
	filter   string
	typing   bool // the filter
	paused   bool
	selected servicemodel.Name // zero, which means the first one, until the user moves
	first    int               // index of the first service on the screen
	detail   bool              // only the selected one
}

// readMsg is the result of a reading.
type readMsg struct {
	sample *sample
	recent recent
	took   time.Duration
	err    error
}

// tickMsg says that the next reading is due.
type tickMsg struct{}

// styles are all styles. Without colours they do nothing.
type styles struct{ head, bad, dim lipgloss.Style }

func newModel(o *options, r *lipgloss.Renderer) *model {
	return &model{interval: o.interval, order: "c", width: 80, height: 24, styles: styles{
		head: r.NewStyle().Bold(true).Reverse(true),
		bad:  r.NewStyle().Foreground(lipgloss.Color("1")),
		dim:  r.NewStyle().Faint(true)}}
}

// Init starts the first reading.
func (m *model) Init() tea.Cmd { return m.read }

// Update handles an event.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		m.move(0)
	case tickMsg:
		if m.paused {
			return m, m.tick()
		}
		return m, m.read
	case readMsg:
		m.take(msg)
		return m, m.tick()
	case tea.KeyMsg:
		return m, m.key(msg)
	}

	return m, nil
}

// tick waits for the next reading. Readings take at most a fifth of the time, because 60,000 pairs
// of frontends and endpoints take the kernel more than a second.
func (m *model) tick() tea.Cmd {
	return tea.Tick(m.wait(), func(time.Time) tea.Msg { return tickMsg{} })
}

func (m *model) wait() time.Duration { return max(m.interval, 4*m.took) }

// take handles a reading. After an error, the previous reading stays on the screen.
func (m *model) take(msg readMsg) {
	m.recent, m.err, m.took = msg.recent, msg.err, msg.took
	if msg.err != nil || m.paused {
		return
	}
	if m.between.now == nil || m.between.now.table != msg.sample.table {
		m.all = catalog(msg.sample.table)
	}
	m.between = between{m.between.now, msg.sample}
	if m.between.old == nil || m.between.old.sums == nil {
		m.between.old = msg.sample
	}
	if msg.sample.sums != nil {
		m.sum = m.between.fill(m.all)
	}
	m.arrange()
}

// arrange makes the list of shown services. The selected service stays selected. If it is shown
// alone and is gone, all are shown again.
func (m *model) arrange() {
	m.shown = m.shown[:0]
	for _, s := range m.all {
		if strings.Contains(s.name.String(), m.filter) {
			m.shown = append(m.shown, s)
		}
	}

	m.detail = m.detail && slices.ContainsFunc(m.shown, m.isSelected)
	compare := orders[m.order].compare
	slices.SortStableFunc(m.shown, func(a, b service) int { return compare(a.rates, b.rates) })
	m.move(0)
}

// at returns the index of the selected service among the shown ones, 0 if it is not shown.
func (m *model) at() int {
	return max(0, slices.IndexFunc(m.shown, m.isSelected))
}

func (m *model) isSelected(s service) bool { return s.name == m.selected }

// move selects another service, and keeps it on the screen.
func (m *model) move(by int) {
	if len(m.shown) == 0 {
		m.first = 0
		return
	}

	at := min(max(0, m.at()+by), len(m.shown)-1)
	if by != 0 {
		m.selected = m.shown[at].name
	}
	m.first = max(min(m.first, at), at-m.rows()+1)
}

// key handles a key.
func (m *model) key(k tea.KeyMsg) tea.Cmd {
	if k.Type == tea.KeyCtrlC {
		return tea.Quit
	}
	if m.typing {
		m.typed(k)
		return nil
	}

	switch s := k.String(); s {
	case "q":
		return tea.Quit
	case " ":
		m.paused = !m.paused
	case "/":
		m.typing = true
	case "c", "p", "b", "n":
		m.order = s
		m.arrange()
	case "enter":
		if m.detail = len(m.shown) > 0; m.detail {
			m.selected = m.shown[m.at()].name
		}
	case "esc":
		if !m.detail {
			m.filter = ""
			m.arrange()
		}

		m.detail = false
	default:
		page, all := m.rows(), len(m.shown)
		m.move(map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -page, "pgdown": page,
			"home": -all, "end": all}[s])
	}

	return nil
}

// typed handles a key while the filter is being typed.
func (m *model) typed(k tea.KeyMsg) {
	switch k.Type {
	case tea.KeyEnter:
		m.typing = false
	case tea.KeyEsc:
		m.typing, m.filter = false, ""
	case tea.KeyBackspace:
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	case tea.KeyRunes, tea.KeySpace:
		m.filter += string(k.Runes)
	}

	m.arrange()
}
