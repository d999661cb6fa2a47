package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// lack returns a backend for a kernel that lacks an extension for a family.
func lack(t *testing.T, f *nft.Family, name string) *backend {
	t.Helper()
	_, ns, _ := opened(t, Config{})
	b := ok(openWith(rawnl.Config{NetNS: ns.NetNS(), Wrap: func(s rawnl.Socket) rawnl.Socket {
		return rawnltest.Without(s, f.NFProto, name)
	}}))(t)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// Exactly the services that need a match that the kernel lacks are refused.
func TestAKernelWithoutAMatch(t *testing.T) {
	t.Parallel()
	for name, lacks := range map[string]lacking{"recent": {recent: true}, "sctp": {sctp: true},
		"bpf": {bpf: true}} {
		require.Equal(t, lacks, lack(t, nft.IPv6, name).kernel.lacks, name)
	}
}

// A kernel that cannot have chains of a family has the optional matches nevertheless. A probe
// checks only the family that the kernel can have.
func TestAKernelWithoutAFamily(t *testing.T) {
	t.Parallel()
	for _, f := range nft.Families {
		b := lack(t, f, "REJECT")
		require.ErrorIs(t, b.kernel.lacks.family, kernelerr.ErrMissingModule)
		require.Equal(t, f, b.kernel.lacks.lacking)
		require.False(t, b.kernel.lacks.recent)
		require.NoError(t, b.judge(t.Context()))
		b.kernel.lacks.lacking = nil
		require.ErrorIs(t, b.judge(t.Context()), kernelerr.ErrMissingModule)
	}
}

// A node that serves one family has nothing of the other: no chain, no table, no jump.
func TestTheFamiliesOfAnInstanceChange(t *testing.T) {
	t.Parallel()
	b, ns, _ := opened(t, Config{})
	second := ok(openBackend(&Config{NetNS: ns.NetNS()}))(t)
	t.Cleanup(func() { second.Close() })
	writers := []*dataplane.Engine{dataplane.New(b, nil), dataplane.New(second, nil)}
	for i, only := range []sm.Family{sm.IPv4, 0, sm.IPv6, 0, sm.IPv4, sm.IPv6, sm.IPv4} {
		node := testNode()
		node.OnlyFamily = only
		s := webService().WithNode(node)
		r := applied(t, writers[i%2], s) // each finds the objects that the other left
		require.Empty(t, r.Drift)
		whole, _, err := []*backend{b, second}[i%2].look(t.Context())
		require.NoError(t, err)
		require.True(t, whole)
		o := observation(t, b)
		require.Empty(t, o.Drift)
		requireSameTable(t, resolve(t, nil, s), o.Table)
		read, _, err := b.kernel.readAll(t.Context(), b.l)
		require.NoError(t, err)
		for j := range read.tables {
			f := table(j).family()
			require.Equal(t, only == 0 || only == f.Model, read.tables[j], "%v of %v",
				table(j), only)
		}

		require.Len(t, b.l.versionsOf(read), 1)
		applied(t, writers[i%2], s.WithoutService(svcName("web")))
		applied(t, writers[i%2], s)
	}
}
