package servicemodel_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestResolvingStepByStepGivesTheSameAsFromScratch(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 60 {
		s := r.state()
		table := mustResolve(t, nil, s)
		for range 30 {
			next := r.edit(s)
			resolved := mustResolve(t, table, next)
			scratch := mustResolve(t, nil, next)
			require.Empty(t, sm.Diff(resolved, scratch.Arrange(resolved)).String(), "resolved against scratch")
			require.Equal(t, slices.Collect(scratch.Conflicts()), slices.Collect(resolved.Conflicts()))
			s, table = next, resolved
		}
	}
}

func TestApplyingADiffLeadsToTheOtherTable(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 300 {
		a, b := mustResolve(t, nil, r.state()), mustResolve(t, nil, r.state())
		c := sm.Diff(a, b)
		applied := a.Apply(c)
		require.True(t, applied.Equal(b), "%v", c)
		require.True(t, sm.Diff(applied, b).Empty())
		require.Equal(t, a.Equal(b), c.Empty())
		for f := range b.Frontends() {
			require.Equal(t, b.FrontendsOf(f.Service), applied.FrontendsOf(f.Service))
		}
		require.True(t, sm.Diff(a, a).Empty())
		require.Empty(t, sm.Diff(a, a).String())
	}
}
