package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
)

// A check finds a table broken, touched or unchanged.
func TestWhatALookSaysOfATable(t *testing.T) {
	t.Parallel()
	table := func(edit func(*skeleton)) *skeleton {
		sk := &skeleton{exists: true, shape: shape{uses: sourceRanges},
			counts: map[string]int{setClusterIPs: 3, setHairpins: 1}}
		edit(sk)
		return sk
	}
	was := table(func(*skeleton) {})
	for _, tc := range []struct {
		edit func(*skeleton)
		want dataplane.Integrity
	}{
		{func(*skeleton) {}, dataplane.Intact},
		{func(sk *skeleton) { sk.counts["more"] = 1 }, dataplane.Intact},
		{func(sk *skeleton) { *sk = skeleton{} }, dataplane.Broken},
		{func(sk *skeleton) { sk.broken = true }, dataplane.Broken},
		{func(sk *skeleton) { sk.stale = true }, dataplane.Broken},
		{func(sk *skeleton) { sk.shape.uses = 0 }, dataplane.Broken},
		{func(sk *skeleton) { sk.counts[setHairpins] = 2 }, dataplane.Broken},
		// the kernel did not tell the number
		{func(sk *skeleton) { delete(sk.counts, setHairpins) }, dataplane.Touched},
		{func(sk *skeleton) { delete(sk.counts, setHairpins); sk.counts[setClusterIPs] = 2 },
			dataplane.Broken},
	} {
		require.Equal(t, tc.want, was.compare(table(tc.edit)))
	}
	require.Equal(t, dataplane.Broken, (&skeleton{}).compare(was))
}
