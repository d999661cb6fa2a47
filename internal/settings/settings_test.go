package settings

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

func TestRulesThatWereNeverWrittenHaveNoLines(t *testing.T) {
	t.Parallel()
	require.Empty(t, Lines(servicemodel.Rules{}))
	r, err := Parse(nil)
	require.NoError(t, err)
	require.Equal(t, servicemodel.Rules{}, r)
}

func TestLinesThatAreNotKnownAreNamed(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"pod-cidr nonsense", "masquerade-mark -1", "what is this"} {
		_, err := Parse([]string{line})
		require.ErrorContains(t, err, line)
	}
}

// Any text is rules or an error, and what was read is written and read as the same rules.
func FuzzParse(f *testing.F) {
	for _, line := range []string{"masquerade-mark 0x4000", "pod-cidr 10.244.0.0/16",
		"node-ports ::/0", "localhost-node-ports", ""} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		r, err := Parse([]string{"masquerade-mark 0x1", line})
		if err != nil || r.MasqueradeMark == 0 {
			return
		}
		again, err := Parse(Lines(r))
		require.NoError(t, err)
		require.True(t, r.Equal(again), "%+v", again)
	})
}
