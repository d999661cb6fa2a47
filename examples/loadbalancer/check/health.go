package check

// State is the verdict about a target.
type State uint8

// The verdicts.
const (
	// Unknown: there is no answer yet.
	Unknown State = iota
	// Up: the target answers.
	Up
	// Down: the target does not answer.
	Down
)

// String returns "unknown", "up" or "down".
func (s State) String() string { return [...]string{"unknown", "up", "down"}[s] }

// health makes verdicts out of answers.
type health struct {
	rise, fall int
	state      State
	against    int // answers in a row that contradict the state
}

// hear counts an answer, and reports whether it changed the state.
func (h *health) hear(ok bool) (changed bool) {
	says, need := Down, h.fall
	if ok {
		says, need = Up, h.rise
	}
	if says == h.state {
		h.against = 0
		return false
	}
	if h.against++; h.state != Unknown && h.against < need {
		return false
	}
	h.state, h.against = says, 0
	return true
}

// doubtful reports whether the last answer contradicts the state.
func (h *health) doubtful() bool { return h.against > 0 }
