package ipvs

import (
	"context"
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/internal/wait"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// If any request fails, Observe, Integrity, Commit, Settle and Cleanup return an error. The next
// attempt begins from the kernel's contents at that time.
func TestEachFailureIsTold(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	rawnltest.FailEach(t, "observe nothing", func(ctx context.Context) error {
		o, err := b.Observe(ctx, nil)
		require.Equal(t, err == nil, o != nil)
		require.Equal(t, err == nil, b.observed)
		return err
	})

	n := 0
	state := func() sm.State {
		n++
		return rigState([]string{"10.244.1.1", fmt.Sprintf("10.244.2.%d", n%7+1)},
			restrictedTo("198.51.100.0/24"))
	}

	for range 2 { // from nothing, and to different endpoints
		rawnltest.FailEach(t, "commit", func(ctx context.Context) error {
			b, c := r.change(state())
			_, err := b.Commit(ctx, c)
			require.Equal(t, err == nil, b.observed)
			return err
		})
	}

	rawnltest.FailEach(t, "observe", func(ctx context.Context) error {
		_, err := b.Observe(ctx, nil)
		return err
	})

	require.Positive(t, len(b.draining))
	requireEachLaterFailureIsTold(t, r, b, state)
	require.Empty(t, r.servers())
	require.NotContains(t, r.run("nft list tables"), "kernlb")
}

// requireEachLaterFailureIsTold requires the same after a commit.
func requireEachLaterFailureIsTold(t *testing.T, r *rig, b *backend, state func() sm.State) {
	t.Helper()
	rawnltest.FailEach(t, "look", func(ctx context.Context) error {
		b.kernel.gen--
		b.looks = wait.NewBudget(8, 20)
		i, err := b.Integrity(ctx)
		require.Equal(t, err == nil, i == backends.Intact)
		return err
	})

	rawnltest.FailEach(t, "settle", func(ctx context.Context) error {
		b := r.commit(state())
		require.NotEmpty(t, b.draining)
		_, err := b.Settle(ctx)
		require.Equal(t, err == nil, b.observed)
		return err
	})

	rawnltest.FailEach(t, "clean up", func(ctx context.Context) error {
		b := r.commit(state())
		_, err := b.Cleanup(ctx)
		return err
	})
}

// Without services, a new address needs no repair.
func TestAddressesDoNotMatterWithoutServices(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	applied(t, r.engine(), sm.State{}.WithNode(goldenNode()))
	r.run("ip address add 192.0.2.10/32 dev lo")
	o := ok(r.backend().Observe(t.Context(), nil))(t)
	require.Empty(t, o.Drift)
}

// A reading knows the used marks: the marks in records, and other programs' marks.
func TestMarksAreReadBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	local := func(s *sm.Service) { s.ExternalTrafficPolicy = sm.PolicyLocal }
	r.apply(r.engine(), rigState([]string{"10.244.1.1", "10.244.2.2"}, local))
	r.addForeign(ipvsnl.MarkService(ipvsnl.FamilyIPv4, 0xc0000099))
	b, _ := r.change(rigState(nil))
	first := b.pl.cfg.Mark | splitMark
	require.Equal(t, map[uint32]bool{first + 1: true, first + 2: true, 0xc0000099: true},
		b.pl.have.index.marks)
}

// If the route cannot be added, commits return an error. They do their work as soon as it can be
// added.
func TestWithoutLoopbackInterface(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	nothing := r.state()
	state := rigState([]string{"10.244.1.1"})
	r.run("ip link set lo down")
	b, c := r.change(state)
	_, err := b.Commit(t.Context(), c)
	require.ErrorContains(t, err, "prepare the network: add route")
	require.False(t, b.observed)
	r.run("ip link set lo name mine")
	r.run("ip link set mine up") // its name does not matter
	e := r.engine()
	r.apply(e, state)
	cleanUp(t, e)
	r.run("ip link set mine down")
	r.run("ip link set mine name lo")
	r.run("ip link set lo up")
	require.Equal(t, nothing, r.state())
}

// A sysctl that cannot be read is an error of a reading and of a check.
func TestUnreadableSysctlsAreAnError(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	b.pl.tunables["net/ipv4/there_is_none"] = "1"
	_, err := b.Observe(t.Context(), nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NotErrorIs(t, err, kernelerr.ErrConflict) // no program changed it
	require.ErrorContains(t, err, "net/ipv4/there_is_none")
	require.False(t, b.observed)

	b = r.backend()
	r.apply(dataplane.New(b, nil), rigState([]string{"10.244.1.1"}))
	b.pl.tunables["net/ipv4/there_is_none"] = "1"
	b.pl.have.tunables.Now = b.pl.tunables
	i, err := b.Integrity(t.Context())
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Equal(t, backends.Broken, i)
}

// If tables vanish during a check, that is not an error: the check finds them broken.
func TestTablesGoWhileTheyAreLookedAt(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	r.apply(dataplane.New(b, nil), rigState([]string{"10.244.1.1"}))
	tap := r.tap(b)
	setsRead, gone := false, false
	tap.Request = func(request []rawnltest.Message) {
		switch request[0].Type & 0xff {
		case uint16(nft.MsgGetSet):
			setsRead = true
		case uint16(nft.MsgGetSetElem):
			if setsRead && !gone {
				gone = true
				r.run("nft flush ruleset")
			}
		}
	}

	b.kernel.gen--
	b.looks = wait.NewBudget(8, 20)
	requireIntegrity(t, b, backends.Broken)
	require.True(t, gone)
}

// If another program commits before each attempt to create the first version, the result is a
// conflict.
func TestTheFirstVersionIsNotTriedForEver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	nothing := r.run("nft list tables")
	b, c := r.change(rigState([]string{"10.244.1.1"}))
	tries := 0
	r.tap(b).Request = func(request []rawnltest.Message) {
		const begin = 0x10 // NFNL_MSG_BATCH_BEGIN
		if request[0].Type == begin {
			tries++
			r.run("nft add table ip6 other; delete table ip6 other")
		}
	}

	_, err := b.Commit(t.Context(), c)
	require.ErrorIs(t, err, kernelerr.ErrConflict)
	require.Equal(t, firstTries, tries)
	require.Equal(t, nothing, r.run("nft list tables"))
}

// Calls of a closed backend say so. No call works in the namespace of the calling thread.
func TestCallsOfAClosedBackend(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {Device: rigDevice}} {
		r := newRig(t)
		b := r.backend(cfg)
		applied(t, dataplane.New(b, nil), rigState([]string{"10.244.1.1"}))
		require.NoError(t, b.Close())
		ctx := t.Context()
		for call, err := range []error{errOf(b.Integrity(ctx)), errOf(b.Observe(ctx, nil)),
			errOf(b.Cleanup(ctx)), errOf(b.Blame(ctx)), b.Watch(ctx, func() {}),
			errOf(b.Lock(ctx))} {
			require.ErrorIs(t, err, kernelerr.ErrClosed, call)
		}

		require.ErrorIs(t, b.kernel.route(unix.AF_INET), kernelerr.ErrClosed)
	}
}

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }

// A commit that other writers prevented is a conflict. Other failures are not.
func TestWhichErrorsOfACommitAreConflicts(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errTaken, errMisread, rawnl.ErrDumpInterrupted, errMoved,
		netlink.ErrDumpInterrupted, rawnl.ErrGenerationChanged, ipvsnl.ErrExists,
		ipvsnl.ErrNoService, ipvsnl.ErrNoDestination} {
		b := withoutKernel(t)
		b.observed = true
		failure := b.failed("do it", fmt.Errorf("x: %w", err))
		require.ErrorIs(t, failure, kernelerr.ErrConflict)
		require.ErrorIs(t, failure, err)
		require.ErrorContains(t, failure, "ipvs: do it: ")
		require.False(t, b.observed)
	}

	for _, err := range []error{context.Canceled, unix.ENOENT, unix.EPERM, rawnl.ErrMalformed} {
		require.NotErrorIs(t, withoutKernel(t).failed("do it", err), kernelerr.ErrConflict)
	}
}

// A commit knows the content of nf_tables: it sends its transactions and reads nothing.
func TestACommitReadsNothing(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	e := dataplane.New(b, nil)
	applied(t, e, rigState([]string{"10.244.1.1"}))
	asked := 0
	r.tap(b).Request = func([]rawnltest.Message) { asked++ }
	next := resolve(t, b.pl.have.table, rigState([]string{"10.244.1.2"}))
	ok(b.Commit(t.Context(), sm.Diff(b.pl.have.table, next)))(t)
	require.Equal(t, 2, asked, "before the virtual servers change, and after")
}

// tap puts a tap between a backend and nf_tables.
func (r *rig) tap(b *backend) *rawnltest.Tap {
	r.t.Helper()
	require.NoError(r.t, b.kernel.nf.Close())
	tap := &rawnltest.Tap{}
	b.kernel.nf = ok(rawnl.Dial(&rawnl.Config{NetNS: r.ns.NetNS(),
		Wrap: func(s rawnl.Socket) rawnl.Socket { return tap.Wrap(s) }}))(r.t)
	return tap
}

// An answer that cannot be decoded never counts as a missing object.
func TestGarbledAnswersAreErrors(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	tap := r.tap(b)
	observe := func() error {
		_, err := b.Observe(t.Context(), nil)
		return err
	}

	rawnltest.GarbleEach(t, "observe nothing", tap, observe)
	state := rigState([]string{"10.244.1.1"}, restrictedTo("198.51.100.0/24", "2001:db8::/32"))
	rawnltest.GarbleEach(t, "commit", tap, func() error {
		_, err := dataplane.New(b, nil).Apply(t.Context(), state)
		return err
	})

	rawnltest.GarbleEach(t, "observe", tap, observe)
	rawnltest.GarbleEach(t, "look", tap, func() error {
		b.kernel.gen--
		b.looks = wait.NewBudget(8, 20)
		i, err := b.Integrity(t.Context())
		require.Equal(t, err == nil, i == backends.Intact)
		return err
	})

	r.apply(r.engine(Config{Table: "another"}), state)
	rawnltest.GarbleEach(t, "clean up", tap, func() error {
		_, err := b.Cleanup(t.Context())
		return err
	})
}
