package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// The last element of an epoch is the version. An epoch with gaps is none.
func TestVersionsAreReadBack(t *testing.T) {
	t.Parallel()
	elems := func(marked version, numbers ...uint32) (l []nft.Elem) {
		for _, n := range numbers {
			v := version{}
			if n == marked.number {
				v = marked
			}
			v.elem(n).Each(func(e nft.Elem) { l = append(l, e) })
		}
		return l
	}
	for _, want := range []version{{epoch: 5, number: 3}, {epoch: 5, number: 3, unswept: true},
		{epoch: 5, number: 3, owners: true}, {epoch: 5, number: 3, unswept: true, owners: true}} {
		got, ok := versionOf(nil, 5, elems(want, 2, 3, 1))
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	for name, l := range map[string][]nft.Elem{
		"empty":       nil,
		"a gap":       elems(version{}, 1, 3),
		"no first":    elems(version{}, 2),
		"zero":        elems(version{}, 0, 1),
		"twice":       elems(version{}, 1, 2, 2),
		"a short key": {{Key: []byte{1}}},
	} {
		_, ok := versionOf(nil, 5, l)
		require.False(t, ok, name)
	}
	epoch, ok := epochOf("version-0000002a", versionSet(42).Spec())
	require.True(t, ok)
	require.Equal(t, uint32(42), epoch)
	for _, name := range []string{"version-2a", "version-0000002A", "version-", "versions",
		"version-0000002a0"} {
		_, ok := epochOf(name, versionSet(42).Spec())
		require.False(t, ok, name)
	}
	_, ok = epochOf("version-0000002a", nft.SetSpec{})
	require.False(t, ok)
}

// Only the last transaction of an epoch deletes something of the version.
func TestEpochsEnd(t *testing.T) {
	t.Parallel()
	m := &memory{t: t}
	b := newMemoryBackend(m)
	states := []servicemodel.State{unitsState().WithEndpoints(goldenService().Name, nil),
		unitsState()}
	table, _ := b.apply(nil, states[1])
	var ends []int
	for n := range 2*epochLength + 1 {
		epoch := b.pl.version.epoch
		table, _ = b.apply(table, states[n%2])
		require.Equal(t, b.pl.version, memoryVersion(m.tables[:]...))
		requireCounts(t, b, n)
		if b.pl.version.epoch != epoch {
			ends = append(ends, n+1)
		}
	}
	require.Equal(t, []int{epochLength, 2 * epochLength}, ends)
}
