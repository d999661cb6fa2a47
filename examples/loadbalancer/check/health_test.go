package check

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each letter of answers is a check that passed (+) or failed (-); each of want is the verdict
// after it.
func TestVerdictsTakeSeveralAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		before        State
		answers, want string
	}{
		{"the first answer decides", Unknown, "+", "U"},
		{"also if it is bad", Unknown, "-+", "DD"},
		{"three failures in a row", Up, "---", "UUD"},
		{"a success in between starts anew", Up, "--+---", "UUUUUD"},
		{"two successes in a row", Down, "+-++", "DDDU"},
		{"who flaps keeps the verdict", Up, "-+--+-+--+", "UUUUUUUUUU"},
		{"whatever it was", Down, "+-+-+-", "DDDDDD"},
	} {
		h := health{rise: 2, fall: 3, state: c.before}
		var got strings.Builder
		for _, a := range c.answers {
			before := h.state
			require.Equal(t, h.hear(a == '+'), h.state != before, c.name)
			got.WriteString(strings.ToUpper(h.state.String()[:1]))
		}
		require.Equal(t, c.want, got.String(), c.name)
	}
}
