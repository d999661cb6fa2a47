package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// A check finds a table broken, touched or unchanged.
func TestWhatALookSaysOfATable(t *testing.T) {
	t.Parallel()
	table := func(edit func(*form.Skeleton)) *form.Skeleton {
		sk := &form.Skeleton{Exists: true, Shape: form.Shape{Uses: form.SourceRanges},
			Counts: map[string]int{form.SetClusterIPs: 3, form.SetHairpins: 1}}
		edit(sk)
		return sk
	}
	was := table(func(*form.Skeleton) {})
	for _, tc := range []struct {
		edit func(*form.Skeleton)
		want dataplane.Integrity
	}{
		{func(*form.Skeleton) {}, dataplane.Intact},
		{func(sk *form.Skeleton) { sk.Counts["more"] = 1 }, dataplane.Intact},
		{func(sk *form.Skeleton) { *sk = form.Skeleton{} }, dataplane.Broken},
		{func(sk *form.Skeleton) { sk.Broken = true }, dataplane.Broken},
		{func(sk *form.Skeleton) { sk.Stale = true }, dataplane.Broken},
		{func(sk *form.Skeleton) { sk.Shape.Uses = 0 }, dataplane.Broken},
		{func(sk *form.Skeleton) { sk.Counts[form.SetHairpins] = 2 }, dataplane.Broken},
		// the kernel did not tell the number
		{func(sk *form.Skeleton) { delete(sk.Counts, form.SetHairpins) }, dataplane.Touched},
		{func(sk *form.Skeleton) {
			delete(sk.Counts,
				form.SetHairpins)
			sk.Counts[form.SetClusterIPs] = 2
		},
			dataplane.Broken},
	} {
		require.Equal(t, tc.want, integrityOf(was, table(tc.edit)))
	}
	require.Equal(t, dataplane.Broken, integrityOf(&form.Skeleton{}, was))
}
