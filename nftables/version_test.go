package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// Only the last transaction of an epoch deletes a set of the version.
func TestEpochsEnd(t *testing.T) {
	t.Parallel()
	m := &memory{t: t}
	b := newMemoryBackend(m)
	states := []servicemodel.State{unitsState().WithEndpoints(goldenService().Name, nil),
		unitsState()}
	table, _ := b.apply(nil, states[1])
	var ends []int
	for n := range 2*form.EpochLength + 1 {
		epoch := b.pl.Version.Epoch
		table, _ = b.apply(table, states[n%2])
		require.Equal(t, b.pl.Version, memoryVersion(m.tables[:]...))
		requireCounts(t, b, n)
		if b.pl.Version.Epoch != epoch {
			ends = append(ends, n+1)
		}
	}

	require.Equal(t, []int{form.EpochLength, 2 * form.EpochLength}, ends)
}
