package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// writerState is the state that a writer applies in one of its rounds.
func writerState(w, i int) sm.State {
	return rigState([]string{fmt.Sprintf("10.244.%d.%d", w+1, i%7+1),
		fmt.Sprintf("10.244.%d.100", w+1)})
}

// Three writers alternate, each with its own backend. Every apply succeeds, and the kernel ends up
// with the last state of one of them.
func TestWritersTakeTurns(t *testing.T) {
	t.Parallel()
	var states []sm.State
	for i := range 120 {
		states = append(states, writerState(i%3, i))
	}
	under := onFake().Backend
	dataplanetest.Writers(t, dataplanetest.Backend{Open: func(ns netns.Namespace) (
		backends.Backend, error) {
		b, err := under.Open(ns)
		return slow{b}, err
	}}, states)
}

// slow waits before it locks, so that writers alternate.
type slow struct{ backends.Backend }

func (slow) Unwrap() backends.Backend { return nil }

func (s slow) Lock(ctx context.Context) (unlock func(), err error) {
	time.Sleep(3 * time.Millisecond)
	return s.Backend.(backends.Locker).Lock(ctx)
}

// halfDone is the drift after a commit that was overtaken.
const halfDone = "a commit was begun and has not ended"

// Two backends have observed the same state. The second backend to commit has a conflict, whatever
// it changes, and whether the first commit has ended or was killed on the way. No update is lost.
func TestTheSecondWriterHasAConflict(t *testing.T) {
	t.Parallel()
	one, two, three := rigState([]string{"10.244.1.1"}), rigState([]string{"10.244.9.2"}),
		rigState([]string{"10.244.9.3"})
	r := newRig(t)
	r.apply(r.engine(), one)
	for n := 1; ; n++ {
		first, toTwo := r.change(two)
		second, toThree := r.change(three)
		steps := first.steps(first.pl.plan(toTwo))
		if n > len(steps) {
			break
		}
		require.NoError(t, first.run(t.Context(), steps[:n]))
		_, err := second.Commit(t.Context(), toThree)
		require.ErrorIs(t, err, kernelerr.ErrConflict)

		// The first writer is overtaken, and cannot end.
		applied(t, r.engine(), three)
		if n < len(steps) {
			require.ErrorIs(t, first.run(t.Context(), steps[len(steps)-1:]), kernelerr.ErrConflict)
		}
		r.apply(r.engine(), three)
		r.apply(r.engine(), one)
	}
}

// Deleting drained destinations is a commit as well.
func TestDrainingIsAWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.commit(rigState([]string{"10.244.1.1", "10.244.2.2"}))
	b := r.commit(rigState([]string{"10.244.1.1"}))
	draining := len(b.draining)
	require.Positive(t, draining)
	before := b.pl.have.companion.version

	other, c := r.change(rigState([]string{"10.244.1.1", "10.244.1.7"}))
	require.Len(t, other.draining, draining)
	since := time.Now().Add(-time.Minute)
	for dk := range other.draining {
		require.Zero(t, other.pl.have.servers[dk.svc].dests[dk.dest].Weight)
		other.draining[dk] = since
	}

	observation(t, other)
	require.Len(t, other.draining, draining)
	for dk, from := range other.draining {
		require.Equal(t, since, from, dk)
	}
	ok(other.Commit(t.Context(), c))(t)
	_, err := b.Settle(t.Context())
	require.ErrorIs(t, err, kernelerr.ErrConflict)
	require.Equal(t, before.next(true), b.pl.have.companion.version.next(true))
	next := ok(other.Settle(t.Context()))(t)
	require.Zero(t, next)
	require.Empty(t, other.draining)
	v := ok(other.kernel.readVersion(t.Context()))(t)
	require.Equal(t, other.pl.have.companion.version, v)
	require.False(t, v.writing)
	require.NotContains(t, r.servers(), "TCP 10.96.0.10:80 -> 10.244.2.2:8080 0")
	r.apply(r.engine(), rigState([]string{"10.244.1.1", "10.244.1.7"}))
}

// Two writers create the same instance. The second writer has a conflict. An instance that is
// created again has a different version.
func TestTheFirstVersionIsMadeOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one, toOne := r.change(rigState([]string{"10.244.1.1"}))
	two, toTwo := r.change(rigState([]string{"10.244.1.2"}))
	ok(one.Commit(t.Context(), toOne))(t)
	_, err := two.Commit(t.Context(), toTwo)
	require.ErrorIs(t, err, kernelerr.ErrConflict)
	require.ErrorIs(t, err, errTaken)
	v := ok(one.kernel.readVersion(t.Context()))(t)
	require.Equal(t, one.pl.have.companion.version, v)
	require.True(t, v.exists)

	cleanUp(t, one)
	again := ok(one.kernel.readVersion(t.Context()))(t)
	require.Equal(t, version{}, again)
	applied(t, dataplane.New(one, nil), rigState(nil))
	require.NotEqual(t, v, one.pl.have.companion.version)
}

// A reading waits for a writer that is at work, and only briefly for a writer that has died.
func TestReadingsWaitForWriters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.apply(r.engine(), rigState([]string{"10.244.1.1"}))
	writer, c := r.change(rigState([]string{"10.244.1.2"}))
	p := writer.pl.plan(c)
	steps := writer.steps(p)
	require.NoError(t, writer.run(t.Context(), steps[:len(steps)-1]))
	reader := r.backend()
	o := observation(t, reader)
	require.Equal(t, []string{halfDone}, o.Drift)
	begun := reader.pl.have.companion.version
	require.True(t, begun.writing)
	require.NoError(t, reader.kernel.requireVersion(t.Context(), begun))

	done := make(chan error, 1)
	time.AfterFunc(writerPatience/5,
		func() { done <- writer.run(context.Background(), steps[len(steps)-1:]) })
	start := time.Now()
	v := ok(reader.kernel.readIdleVersion(t.Context()))(t)
	waited := time.Since(start)
	require.NoError(t, <-done)
	if v.writing { // on a busy machine, the writer needs longer than the reader waits
		require.GreaterOrEqual(t, waited, writerPatience)
		v = ok(reader.kernel.readIdleVersion(t.Context()))(t)
	}

	require.False(t, v.writing)
	require.Equal(t, p.versions[stageEnd], v)
	require.ErrorIs(t, reader.kernel.requireVersion(t.Context(), begun), errTaken)
	requireIntegrity(t, reader, backends.Broken)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := reader.Observe(ended, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// The next apply completes an unfinished commit, even if it changes nothing itself.
func TestWhatWasBegunIsEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1"})
	r.apply(r.engine(), s)
	b, _ := r.change(s)
	p := b.pl.newPlan()
	p.network.route = [2]bool{true, true}
	b.pl.planVersion(p)
	require.NoError(t, b.kernel.stage(p, stageRestrict)(t.Context()))
	b, c := r.change(s)
	require.True(t, b.pl.have.companion.version.writing)
	require.True(t, c.Empty())
	plan := ok(b.Plan(c))(t)
	require.Equal(t, 2, plan.Stats().Messages)
	require.Zero(t, plan.Stats().Elements)
	ok(b.Commit(t.Context(), c))(t)
	require.False(t, b.pl.have.companion.version.writing)
	r.apply(r.engine(), s)
}

// A writer that sends many commands checks in between whether another writer has taken over.
func TestWritersNoticeThatTheyWereTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.apply(r.engine(), rigState([]string{"10.244.1.1"}))
	b, _ := r.change(rigState(nil))
	var ops []ipvsnl.Op
	for i := range sendAtOnce + 1 {
		k := ipvsnl.MarkService(ipvsnl.FamilyIPv4, uint32(i+1))
		ops = append(ops, ipvsnl.NewService(ipvsnl.Service{ServiceKey: k, Scheduler: "rr"}))
	}

	before := len(r.fake.Keys())
	another := b.pl.have.companion.version.next(false)
	require.ErrorIs(t, b.send(ops, another)(t.Context()), errTaken)
	require.Len(t, r.fake.Keys(), before+sendAtOnce)
}

func TestIntegrityLooksAtTheRest(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	broken := func(want backends.Integrity) {
		t.Helper()
		requireIntegrity(t, b, want)
	}

	broken(backends.Broken)
	observation(t, b)
	broken(backends.Intact) // nothing exists yet, and nothing is wanted
	r.run("nft add table ip other")
	broken(backends.Intact)
	e := dataplane.New(b, nil)
	s := rigState([]string{"10.244.1.1"})
	r.apply(e, s)
	broken(backends.Intact)
	r.run("ip address add 192.0.2.10/32 dev lo")
	broken(backends.Broken)
	e.Resync() // a change is reported only once
	r.apply(e, s)
	broken(backends.Intact)
	r.run("ip rule add priority 50 table 250")
	r.run("ip route add blackhole 240.0.0.0/4 table 250")
	require.False(t, b.kernel.routed(0))
	broken(backends.Intact) // another program's rule precedes ours, which exists

	for _, k := range r.fake.Keys() {
		r.submit(ipvsnl.SetService(ipvsnl.Service{ServiceKey: k, Scheduler: "lc",
			Flags: b.pl.have.servers[k].svc.Flags}))
	}

	b.kernel.outlines.due = time.Time{} // IPv4 changes show in outlines, which are rate-limited
	broken(backends.Broken)
	r.apply(e, s)
	for _, k := range r.fake.Keys() {
		r.submit(ipvsnl.DelService(k))
	}
	broken(backends.Broken)
	r.apply(e, s)
	broken(backends.Intact)
}

func TestRefusalsOfTheKernel(t *testing.T) {
	t.Parallel()
	missing := &rawnl.OpError{Object: "set version", Errno: syscall.ENOENT}
	there := &rawnl.OpError{Object: "table ip x", Errno: syscall.EEXIST}
	rule := &rawnl.OpError{Object: "rule admit", Errno: syscall.ENOENT}
	denied := &rawnl.OpError{Object: "set version", Errno: syscall.EPERM}
	require.True(t, changedByOthers(missing))
	require.True(t, changedByOthers(rawnl.OpErrors{there, missing}))
	require.False(t, changedByOthers(rule))
	require.False(t, changedByOthers(denied))
	require.False(t, changedByOthers(nil))
	require.False(t, changedByOthers(syscall.ENOENT))
}

func TestElementsThatAppearTwiceAreAMisreading(t *testing.T) {
	t.Parallel()
	m := map[string]nft.Elem{}
	add := collect(m)
	require.NoError(t, add(nft.Elem{Key: []byte{1}}))
	require.NoError(t, add(nft.Elem{Key: []byte{2}}))
	require.Len(t, m, 2)
	require.ErrorIs(t, add(nft.Elem{Key: []byte{2}}), errMisread)
	require.True(t, interrupted(errMisread))
	require.False(t, interrupted(nil))
	require.False(t, interrupted(syscall.EPERM))
}

// Frontends of the same node port in both families have separate endpoints.
func TestNodePortsOfBothFamiliesReadBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run("ip address add 192.0.2.10/32 dev lo")
	r.run("ip -6 address add 2001:db8::10/128 dev lo nodad")
	eps := goldenEndpoints("10.244.1.1", "10.244.2.2", "fd00:10:244::1", "fd00:10:244::2")
	for _, edit := range []func(*sm.Service){
		func(*sm.Service) {},
		func(s *sm.Service) { s.ExternalTrafficPolicy = sm.PolicyLocal },
		func(s *sm.Service) { s.ClusterIPs = s.ClusterIPs[1:]; s.ExternalIPs = nil },
		func(s *sm.Service) { // it precedes the node port
			s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.10")}
			s.Ports[0].Port = s.Ports[0].NodePort
		},
	} {
		s := rigState(nil, edit)
		for svc := range s.Services() {
			s = s.WithEndpoints(svc.Name, eps)
		}
		r.apply(r.engine(), s)
		require.Contains(t, r.servers(), "TCP [2001:db8::10]:30080 -> [fd00:10:244::1]:8080 1")
	}
}

// unlocked hides that a backend is a Locker and a Settler.
type unlocked struct{ backends.Backend }

func (unlocked) Unwrap() backends.Backend { return nil }

// Without the lock, a writer that was overtaken reports a conflict. It may leave its work
// unfinished. Then the version says so, and the next apply results in its state.
func TestWritersAreRightWithoutTheLock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	noDrain := Config{DrainLimit: -1}
	var all sync.WaitGroup
	for w := range 2 {
		e := dataplane.New(unlocked{r.backend(noDrain)}, nil)
		all.Go(func() {
			for i := range 60 {
				_, err := e.Apply(context.Background(), writerState(w, i))
				if err != nil && !errors.Is(err, kernelerr.ErrConflict) {
					t.Errorf("writer %d, apply %d: %v", w, i, err)
					return
				}
			}
		})
	}

	all.Wait()
	b := r.backend()
	o := observation(t, b)
	require.Equal(t, b.pl.have.companion.version.writing, len(o.Drift) > 0)
	final := writerState(0, 0)
	applied(t, r.engine(noDrain), final)
	clean := newRig(t)
	clean.apply(clean.engine(noDrain), final)
	require.Equal(t, clean.state(), r.state())
}
