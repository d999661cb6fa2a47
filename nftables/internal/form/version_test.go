package form

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
)

// The last element of an epoch is the version. An epoch with gaps is not a version.
func TestVersionsAreReadBack(t *testing.T) {
	t.Parallel()
	elems := func(marked Version, numbers ...uint32) (l []nft.Elem) {
		for _, n := range numbers {
			v := Version{}
			if n == marked.Number {
				v = marked
			}
			v.Elem(n).Each(func(e nft.Elem) { l = append(l, e) })
		}

		return l
	}

	for _, want := range []Version{{Epoch: 5, Number: 3}, {Epoch: 5, Number: 3, Unswept: true},
		{Epoch: 5, Number: 3, Owners: true}, {Epoch: 5, Number: 3, Unswept: true, Owners: true}} {
		got, ok := VersionOf(nil, 5, elems(want, 2, 3, 1))
		require.True(t, ok)
		require.Equal(t, want, got)
	}

	for name, l := range map[string][]nft.Elem{
		"empty":       nil,
		"a gap":       elems(Version{}, 1, 3),
		"no first":    elems(Version{}, 2),
		"zero":        elems(Version{}, 0, 1),
		"twice":       elems(Version{}, 1, 2, 2),
		"a short key": {{Key: []byte{1}}},
	} {
		_, ok := VersionOf(nil, 5, l)
		require.False(t, ok, name)
	}

	epoch, ok := EpochOf("version-0000002a", VersionSet(42).Spec())
	require.True(t, ok)
	require.Equal(t, uint32(42), epoch)
	for _, name := range []string{"version-2a", "version-0000002A", "version-", "versions",
		"version-0000002a0"} {
		_, ok := EpochOf(name, VersionSet(42).Spec())
		require.False(t, ok, name)
	}

	_, ok = EpochOf("version-0000002a", nft.SetSpec{})
	require.False(t, ok)
}
