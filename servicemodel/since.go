package servicemodel

import "github.com/kernlb/kernlb/internal/persist"

// Edits says how much differs between two states, see [State.Since].
type Edits struct {
	// Services counts the services that came, went or are defined otherwise.
	Services int
	// Endpoints counts the services whose endpoints differ.
	Endpoints int
	// Growth is how many endpoints more there are; negative if there are fewer.
	Growth int
}

// Since says how much of s differs from an older state, at a cost that depends on what differs. In
// relation to the zero State, it counts what there is. The node is not compared.
func (s State) Since(old State) Edits {
	var e Edits
	for range persist.Diff(old.services, s.services, (*Service).equal) {
		e.Services++
	}
	for c := range persist.Diff(old.endpoints, s.endpoints, equalEndpoints) {
		e.Endpoints++
		e.Growth += len(c.New) - len(c.Old)
	}
	return e
}
