package nftables

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/servicemodel"
)

// turns are states with different endpoints.
func turns() (l [3]servicemodel.State) {
	for i, addr := range []string{"10.244.1.7", "10.244.1.8", "10.244.1.9"} {
		l[i] = servicemodel.State{}.WithNode(goldenNode()).WithService(goldenService()).
			WithEndpoints(goldenService().Name, goldenEndpoints(addr))
	}

	return l
}

// advanceTo applies states in turn until the version has a number.
func advanceTo(t *testing.T, b *backend, e *dataplane.Engine, number uint32) {
	t.Helper()
	states := turns()
	for n := 0; b.pl.Version.Number != number; n++ {
		ok(e.Apply(t.Context(), states[n%2]))(t)
	}
}

// A writer is late by one transaction or by several, in the same epoch or in the next one.
func TestTheLateWriterIsRefusedAcrossEpochs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ from, to uint32 }{{2, 3}, {5, 9},
		{form.EpochLength - 1, form.EpochLength},
		{form.EpochLength, 1}, {3, 3}, {form.EpochLength, form.EpochLength}} {
		ns, late := newNS(t)
		b := newBackend(t, ns, nil)
		e := dataplane.New(b, nil)
		ok(e.Apply(t.Context(), turns()[2]))(t)
		advanceTo(t, b, e, tc.from)
		before := b.pl.Version
		o := ok(late.Observe(t.Context(), nil))(t)
		require.Equal(t, before, late.pl.Version)

		ok(e.Apply(t.Context(), turns()[2]))(t)
		advanceTo(t, b, e, tc.to)
		require.NotEqual(t, before, b.pl.Version)
		require.Equal(t, backends.Broken, integrity(t, late))
		_, err := late.Commit(t.Context(), servicemodel.Diff(o.Table,
			mustResolve(t, turns()[2]).Arrange(o.Table)))
		require.ErrorIs(t, err, kernelerr.ErrConflict)
		require.Equal(t, backends.Intact, integrity(t, b), "nothing of it is in the kernel")

		ok(late.Observe(t.Context(), nil))(t)
		require.Equal(t, b.pl.Version, late.pl.Version)
	}
}

// A process that publishes something new deletes nothing in the kernel. After a deletion, closing
// the socket would wait for an RCU grace period.
func TestWhoOnlyAddsDeletesNothing(t *testing.T) {
	t.Parallel()
	ns, _ := newNS(t)
	states := sharedState()
	applyParts(t, ns, states, "default", "other")
	b, tap := tapped(t, ns)
	sent := map[uint8]int{}
	tap.Request = func(request []rawnltest.Message) {
		for _, m := range request {
			if m.Type>>8 == uint16(rawnl.SubsysNFTables) {
				sent[uint8(m.Type)]++
			}
		}
	}

	svc := goldenService(func(s *servicemodel.Service) {
		s.Name.Namespace, s.ClusterIPs = "new", []netip.Addr{netip.MustParseAddr("10.96.0.77")}
		s.Ports[0].NodePort = 30077
	})
	ok(dataplane.NewParts(b, nil).Apply(t.Context(), "new", servicemodel.State{}.
		WithNode(goldenNode()).WithService(svc).
		WithEndpoints(svc.Name, goldenEndpoints("10.244.1.77", "10.244.1.78"))))(t)
	require.NotZero(t, sent[nft.MsgNewSetElem])
	for _, deletion := range []uint8{nft.MsgDelTable, nft.MsgDelSet, nft.MsgDelSetElem,
		nft.MsgDelRule, nft.MsgDelChain} {
		require.Zero(t, sent[deletion], deletion)
	}
}

// A damaged version is read again. If another program commits during the readings, the result is a
// conflict.
func TestVersionsThatAreReadWhileOthersCommit(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	e := dataplane.New(b, nil)
	ok(e.Apply(t.Context(), turns()[2]))(t)
	advanceTo(t, b, e, 3)
	r, tap := tapped(t, ns)
	for _, commits := range []bool{false, true} {
		doubledTimes := 0
		tap.Answer = func(m rawnltest.Message) {
			if doubled(m) {
				if doubledTimes++; commits {
					ok(e.Apply(t.Context(), turns()[doubledTimes%2]))(t)
				}
			}
		}

		v, err := r.kernel.reader.Version(t.Context(), defaultTable)
		require.Equal(t, 2, doubledTimes)
		require.Zero(t, v)
		if commits {
			require.ErrorIs(t, err, rawnl.ErrDumpInterrupted)
		} else {
			require.NoError(t, err)
		}
	}

	tap.Answer = nil
	v := ok(r.kernel.reader.Version(t.Context(), defaultTable))(t)
	require.Equal(t, b.pl.Version, v)
}

// Two writers read an instance that has lost its version, and both commit. The second writer gets a
// conflict, and no writer loses the other writer's changes.
func TestTwoWritersWithoutAVersion(t *testing.T) {
	t.Parallel()
	program := nftPrograms(t)[0]
	for name, edit := range map[string]string{
		"deleted":    "delete set ip kernlb VERSION",
		"two epochs": "add set ip kernlb version-00000007 { type mark; size 128; }",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, _ := newNS(t)
			states := sharedState()
			applyParts(t, ns, states, "default")
			editByHand(t, ns, program, edit)
			observed := func(owner string) (commit func() error) {
				b, part := newBackend(t, ns, nil), mustResolve(t, states[owner])
				o := ok(b.ObserveParts(t.Context(), []string{owner}, part))(t)
				next := ok(o.Table.WithPart(owner, part))(t)
				return func() error {
					_, err := b.Commit(t.Context(), servicemodel.Diff(o.Table, next))
					return err
				}
			}

			first, second := observed("other"), observed("third")
			require.NoError(t, first())
			require.ErrorIs(t, second(), kernelerr.ErrConflict)
			require.NoError(t, observed("third")())
			requireShared(t, ns, states, 0)
		})
	}
}
