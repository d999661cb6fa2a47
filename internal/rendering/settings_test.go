package rendering

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

func TestRulesThatWereNeverWrittenHaveNoLines(t *testing.T) {
	t.Parallel()
	require.Empty(t, Settings(1, servicemodel.Rules{}))
	r, err := ParseSettings(1, nil)
	require.NoError(t, err)
	require.Equal(t, servicemodel.Rules{}, r)
}

func TestLinesThatAreNotKnownAreNamed(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"pod-cidr nonsense", "masquerade-mark -1", "what is this"} {
		_, err := ParseSettings(1, []string{"layout 1", line})
		require.ErrorContains(t, err, line)
	}
}

func TestAnotherLayoutIsNotRead(t *testing.T) {
	t.Parallel()
	r := servicemodel.Rules{MasqueradeMark: 1}
	for _, lines := range [][]string{Settings(1, r), Settings(3, r), Settings(2, r)[1:]} {
		_, err := ParseSettings(2, lines)
		require.ErrorContains(t, err, strconv.Quote(lines[0])+`, want "layout 2"`)
	}

	got, err := ParseSettings(2, Settings(2, r))
	require.NoError(t, err)
	require.Equal(t, r, got)
}

// Any text yields rules or an error. Writing and parsing parsed rules again returns the same rules.
func FuzzParseSettings(f *testing.F) {
	for _, line := range []string{"masquerade-mark 0x4000", "pod-cidr 10.244.0.0/16",
		"node-ports ::/0", "localhost-node-ports", ""} {
		f.Add(line)
	}

	f.Fuzz(func(t *testing.T, line string) {
		r, err := ParseSettings(1, []string{"layout 1", "masquerade-mark 0x1", line})
		if err != nil || r.MasqueradeMark == 0 {
			return
		}
		again, err := ParseSettings(1, Settings(1, r))
		require.NoError(t, err)
		require.True(t, r.Equal(again), "%+v", again)
	})
}
