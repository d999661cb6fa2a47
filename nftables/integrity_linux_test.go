package nftables

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/randstate"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// look checks the tables, regardless of the budget for checks.
func look(t *testing.T, b *backend) backends.Integrity {
	t.Helper()
	b.looks = wait.NewBudget(8, 20)
	return ok(b.look(t.Context()))(t)
}

// tellsCounts reports whether the kernel reports the number of elements of a set, as Linux 6.16 and
// newer do.
func tellsCounts(t *testing.T, b *backend) bool {
	t.Helper()
	count := ok(b.kernel.reader.About(nft.IPv4, defaultTable).Count(t.Context(),
		form.SetSettings))(t)
	return count >= 0
}

// After each commit, the known numbers of elements match the kernel's numbers. A check finds
// nothing, whether the tables were adopted or written.
func TestALookAfterACommitFindsNothing(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	g := randstate.New(randomConfig(), rand.New(rand.NewPCG(5, 5)))
	s := g.State()
	e := dataplane.New(b, nil)
	ok(e.Apply(t.Context(), s))(t)
	told := tellsCounts(t, b)
	want := backends.Intact
	if !told {
		want = backends.Touched
	}
	for step := range 60 {
		s = g.Change(s)
		ok(e.Apply(t.Context(), s))(t)
		require.Equal(t, want, look(t, b), "step %d", step)
		if step == 30 {
			b = newBackend(t, ns, nil)
			e = dataplane.New(b, nil)
		}
	}

	before := b.kernel.gen
	require.NoError(t, editSet(t, b, "service-drop"))
	b.looks = wait.NewBudget(8, 20) // on a busy machine, the last check took long
	i := integrity(t, b)
	if told {
		require.Equal(t, backends.Broken, i)
		require.Equal(t, before, b.kernel.gen, "it is looked for again")
	}
}

// A check compares all settings, even a setting that no rule of the family uses.
func TestALookFindsReplacedSettings(t *testing.T) {
	t.Parallel()
	program := nftPrograms(t)[0]
	const setting = "element ip kernlb settings { 0x00000005"
	ns, b := newNS(t)
	ok(dataplane.New(b, nil).Apply(t.Context(), editedState()))(t)
	require.NotEqual(t, backends.Broken, look(t, b))
	editByHand(t, ns, program,
		"delete "+setting+" }\nadd "+setting+` comment "node-ports fd00::/64" }`)
	require.Equal(t, backends.Broken, look(t, b))
}

// An error of the connection is not a conflict, and is returned at once.
func TestFailuresAreNoConflicts(t *testing.T) {
	t.Parallel()
	_, b := newNS(t)
	e := dataplane.New(b, nil)
	s := editedState()
	ok(e.Apply(t.Context(), s))(t)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, call := range []struct {
		name string
		do   func() error
	}{
		{"integrity", func() error { _, err := b.Integrity(ctx); return err }},
		{"observe", func() error { _, err := b.Observe(ctx, nil); return err }},
		{"cleanup", func() error { _, err := b.Cleanup(ctx); return err }},
	} {
		err := call.do()
		require.ErrorIs(t, err, context.Canceled, call.name)
		require.NotErrorIs(t, err, kernelerr.ErrConflict, call.name)
		require.ErrorContains(t, err, "nftables: "+call.name)
	}

	require.Equal(t, backends.Broken, integrity(t, b), "after an error it must be observed again")
	ok(b.Observe(t.Context(), nil))(t)
	require.NoError(t, b.Close())
	_, err := b.Observe(t.Context(), nil)
	require.ErrorIs(t, err, rawnl.ErrClosed)
	require.NotErrorIs(t, err, kernelerr.ErrConflict)
}

// If the instance does not exist, a neighbour's commit does not change its integrity. A program
// that creates the instance does.
func TestIntegrityOfNothing(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	ok(b.Observe(t.Context(), nil))(t)
	other := newBackend(t, ns, &Config{Table: "other"})
	ok(dataplane.New(other, nil).Apply(t.Context(), editedState()))(t)
	require.Equal(t, backends.Intact, look(t, b))
	ok(dataplane.New(newBackend(t, ns, nil), nil).Apply(t.Context(), editedState()))(t)
	require.Equal(t, backends.Broken, integrity(t, b))
}

// Chains of other tables are not read, because there may be thousands of chains.
func TestChainsOfOthersAreNotRead(t *testing.T) {
	t.Parallel()
	ns, writer := newNS(t)
	ok(dataplane.New(writer, nil).Apply(t.Context(), editedState()))(t)
	b, tap := tapped(t, ns)
	asked := 0
	tap.Request = func(request []rawnltest.Message) {
		for _, m := range request {
			if m.Type == uint16(rawnl.SubsysNFTables)<<8|uint16(nft.MsgGetChain) {
				asked++
				require.Zero(t, m.Flags&rawnl.FlagDump)
			}
		}
	}

	ok(b.Observe(t.Context(), nil))(t)
	require.Positive(t, asked)
	require.Equal(t, backends.Intact, look(t, b))
}
