package iptables

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestVersionsAreNamesOfChains(t *testing.T) {
	t.Parallel()
	n := names{"LONGEST"}
	for _, v := range []uint32{0, 1, 0x1a2b3c4d, 1<<32 - 1} {
		name := n.version(v)
		require.LessOrEqual(t, len(name), maxChainName)
		got, ok := n.parseVersion(name)
		require.True(t, ok)
		require.Equal(t, v, got)
		require.False(t, n.owned(name), "it is not a chain that may be missing or be too many")
	}
	for _, name := range []string{
		"LONGEST-VERSION-", "LONGEST-VERSION-1a2b3c4", "LONGEST-VERSION-1A2B3C4D",
		"KUBE-VERSION-1a2b3c4d",
		"LONGEST-VERSION-1a2b3c4d5", "LONGEST-VERSION-+a2b3c4d", "LONGEST-VERSION-1a2b3c4x",
		"LONGEST",
	} {
		_, ok := n.parseVersion(name)
		require.False(t, ok, name)
	}
	require.NotEqual(t, newVersion(), newVersion(), "one in four thousand million times this fails")
}

// An instance that exists has one version. Without an instance there is none.
func TestVersionsThatDoNotBelong(t *testing.T) {
	t.Parallel()
	l := newLayout(DefaultPrefix)
	there := newMemory()
	p := planFor(t, webService())[0]
	there.apply(l, p)
	for _, c := range []struct {
		name     string
		m        *memory
		versions []uint32
		drift    []string
		renewed  bool
	}{
		{"as it should be", there, []uint32{7}, nil, false},
		{"none", there, nil, []string{"chain KUBE-VERSION of table ip nat is missing"}, true},
		{"two", there, []uint32{7, 9},
			[]string{"chain KUBE-VERSION-00000009 of table ip nat does not belong"}, true},
		{"nothing is there", newMemory(), nil, nil, false},
		{
			"nothing but a version", newMemory(), []uint32{1},
			[]string{"chain KUBE-VERSION-00000001 of table ip nat does not belong"}, true,
		},
	} {
		maps.DeleteFunc(c.m.raw.chains, func(id chainID, _ *rawChain) bool {
			return l.isVersion(id)
		})
		var versions []chainID
		for _, v := range c.versions {
			versions = append(versions, nat4.chain(l.names.version(v)))
			c.m.raw.put(versions[len(versions)-1], &rawChain{})
		}
		o, err := l.interpret(c.m.list(), nil)
		require.NoError(t, err)
		require.Equal(t, c.drift, o.text, c.name)
		require.Equal(t, versions, o.kernel.versions, c.name)
		require.Equal(t, c.name == "none", o.kernel.unversioned, c.name)
		p := l.plan(&o.kernel, o.state, o.state, changes{})
		require.Equal(t, !c.renewed, p.empty(), c.name)
		if c.renewed {
			require.Equal(t, versions, p.version.gone, c.name)
			require.Equal(t, o.state.present[nft.IPv4], p.version.made, c.name)
		}
	}
}

// The sum of uses computed from changes is the one that the kernel would list.
func TestUsesFollowFromChanges(t *testing.T) {
	t.Parallel()
	_, states := story()
	l, m := newLayout(DefaultPrefix), newMemory()
	b := backend{l: l, state: &state{}, found: kernelState{shared: map[chainID][]rule{}}}
	seen := map[uses]bool{}
	for _, s := range states {
		next := resolve(t, b.state.table, s)
		st, ch := l.step(b.state, sm.Diff(b.state.table, next), localnet{})
		p := l.plan(&b.found, b.state, st, ch)
		m.apply(l, p)
		b.committed(p)
		require.Equal(t, l.usesOf(m.list()), b.found.uses)
		seen[b.found.uses] = true
	}
	require.Len(t, seen, len(states)-1, "but for an endpoint that takes the place of another")
}
