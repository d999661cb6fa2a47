package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/backends"
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
		want backends.Integrity
	}{
		{func(*form.Skeleton) {}, backends.Intact},
		{func(sk *form.Skeleton) { sk.Counts["more"] = 1 }, backends.Intact},
		{func(sk *form.Skeleton) { *sk = form.Skeleton{} }, backends.Broken},
		{func(sk *form.Skeleton) { sk.Broken = true }, backends.Broken},
		{func(sk *form.Skeleton) { sk.Stale = true }, backends.Broken},
		{func(sk *form.Skeleton) { sk.Shape.Uses = 0 }, backends.Broken},
		{func(sk *form.Skeleton) { sk.Counts[form.SetHairpins] = 2 }, backends.Broken},
		// the kernel did not report the number
		{func(sk *form.Skeleton) { delete(sk.Counts, form.SetHairpins) }, backends.Touched},
		{func(sk *form.Skeleton) {
			delete(sk.Counts,
				form.SetHairpins)
			sk.Counts[form.SetClusterIPs] = 2
		},
			backends.Broken},
	} {
		require.Equal(t, tc.want, integrityOf(was, table(tc.edit)))
	}

	require.Equal(t, backends.Broken, integrityOf(&form.Skeleton{}, was))
}
