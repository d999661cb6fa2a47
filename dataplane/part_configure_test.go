package dataplane_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/nocopy"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestGetReturnsWhatAnOwnerHolds(t *testing.T) {
	onBackends(t, func(t *testing.T, b dataplane.Backend) {
		p := dataplane.NewParts(b, nil)
		for _, owner := range []string{"a", "b"} {
			ok(p.Apply(t.Context(), owner, published(owner, owner[0],
				80+uint16(owner[0]))))(t)
		}
		got := ok(p.Get(t.Context(), "b"))(t)
		require.Equal(t, 1, got.Len())
		for f := range got.Frontends() {
			require.Equal(t, "b", f.Service.Name.Namespace)
			pool, _ := got.PoolsOf(f)
			require.Equal(t, "10.244.0.98:80", pool.Slots[0].Endpoint.String())
		}
		got = ok(p.Get(t.Context(), "c"))(t)
		require.Zero(t, got.Len())
	})
}

func TestSettingsOfALiveInstanceAreChanged(t *testing.T) {
	onBackends(t, func(t *testing.T, b dataplane.Backend) {
		p, k := dataplane.NewParts(b, nil), kernelOf(b)
		marked := func(m uint32) servicemodel.Node {
			return servicemodel.Node{MasqueradeMark: m}
		}
		r := ok(p.Configure(t.Context(), marked(2)))(t)
		require.True(t, r.Changes.Empty())
		require.Zero(t, k.Table().Rules().MasqueradeMark, "there is no instance")
		states := map[string]servicemodel.State{}
		for _, owner := range []string{"a", "b"} {
			states[owner] = published(owner, 7, 80+uint16(owner[0])).WithNode(marked(1))
			ok(p.Apply(t.Context(), owner, states[owner]))(t)
		}
		_, err := p.Configure(t.Context(), marked(3))
		require.ErrorIs(t, err, dataplane.ErrRefused)
		require.Equal(t, "masqueradeMark", dataplane.Problems(err)[0].Field)
		for range 2 {
			ok(p.Configure(t.Context(), marked(2)))(t)
		}
		require.Equal(t, 3, commitsOf(b), "two parts, and one change of settings")
		require.EqualValues(t, 2, k.Table().Rules().MasqueradeMark)
		for _, owner := range []string{"a", "b"} {
			require.Equal(t, 1, nocopy.Of(k.Table()).Part(owner).Len())
		}
		ok(p.Apply(t.Context(), "c", published("c", 7, 90).WithNode(marked(2))))(t)
	})
}

func commitsOf(b dataplane.Backend) int {
	if m, ok := b.(*memory.Backend); ok {
		return m.Calls("commit")
	}
	return b.(*partial).Calls("commit")
}
