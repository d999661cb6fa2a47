package dataplane

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/wait"
)

var start = time.Unix(1000, 0)

// second returns the time that many seconds after the start.
func second(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }

// requireDue requires an action at a second, or never if that is 0. Each retry waits up to a
// quarter longer at random.
func requireDue(t *testing.T, now time.Time, at int, do action, d due, msg string) {
	t.Helper()
	require.Equal(t, do, d.do, msg)
	if at == 0 {
		require.Zero(t, d.at, msg)
		return
	}

	require.False(t, d.at.Before(second(at)), "%s: %v", msg, d.at.Sub(start))
	require.LessOrEqual(t, d.at.Sub(now), second(at).Sub(now)*5/4, msg)
}

func TestScheduleOfApplies(t *testing.T) {
	t.Parallel()
	type event = func(*applySchedule, time.Time)
	set := func(r Revision) event {
		return func(s *applySchedule, now time.Time) { s.requested(now, r, true, true) }
	}
	tried := func(r *Result, err error) event {
		return func(s *applySchedule, now time.Time) { s.tried(now, s.do, r, err) }
	}
	failed, denied := tried(nil, errors.New("no")), tried(nil, ErrNotApproved)
	done := tried(&Result{Revision: 1}, nil)
	type step struct {
		at    int
		event event
		due   int
		do    action
	}
	for name, c := range map[string]struct {
		opts  RunOptions
		steps []step
	}{
		"a state is applied at once, and read again later": {RunOptions{}, []step{
			{1, set(1), 1, doApply}, {2, tried(&Result{Revision: 2}, nil), 302, doResync},
			{3, set(2), 302, doResync}, {4, set(3), 4, doApply}}},
		"another call has applied it": {RunOptions{Resync: -1}, []step{
			{1, set(1), 1, doApply}, {2, tried(nil, nil), 0, doResync}}},
		"no state is wanted": {RunOptions{}, []step{{1, set(1), 1, doApply},
			{2, func(s *applySchedule, now time.Time) { s.requested(now, 2, false, true) }, 0,
				doResync}, {3, (*applySchedule).changed, 0, doResync}}},
		"the minimal interval": {RunOptions{MinInterval: 10 * time.Second}, []step{
			{1, set(1), 1, doApply}, {3, done, 303, doResync}, {4, set(2), 13, doApply},
			{13, failed, 23, doApply}, {40, set(3), 40, doApply}}},
		"a burst": {RunOptions{MinInterval: 10 * time.Second, Burst: 2}, []step{
			{1, set(1), 1, doApply}, {2, done, 302, doResync}, {3, set(2), 3, doApply},
			{3, done, 303, doResync}, {4, set(3), 12, doApply}}},
		"retries": {RunOptions{RetryMin: time.Second, RetryMax: 4 * time.Second}, []step{
			{1, set(1), 1, doApply}, {1, failed, 2, doApply}, {3, failed, 5, doApply},
			{6, failed, 10, doApply}, {11, failed, 15, doApply}, {16, set(2), 16, doApply},
			{17, done, 317, doResync}, {317, failed, 318, doResync}}},
		"watched objects change": {RunOptions{RetryMin: 10 * time.Second}, []step{
			{1, set(1), 1, doApply}, {2, done, 302, doResync},
			{3, (*applySchedule).changed, 3, doReapply}, {4, failed, 14, doReapply},
			{5, (*applySchedule).changed, 14, doReapply}}},
		"a change during a retry": {RunOptions{RetryMin: 10 * time.Second}, []step{
			{1, set(1), 1, doApply}, {1, failed, 11, doApply},
			{2, (*applySchedule).changed, 11, doReapply}}},
		"a switch ends the wait": {RunOptions{}, []step{{1, (*applySchedule).switched, 0, doResync},
			{1, set(1), 1, doApply}, {1, denied, 31, doApply},
			{2, (*applySchedule).switched, 2, doApply}}},
		"not approved": {RunOptions{}, []step{{1, set(1), 1, doApply}, {1, denied, 31, doApply},
			{2, (*applySchedule).changed, 2, doReapply}, {2, denied, 32, doReapply},
			{32, done, 332, doResync}}},
	} {
		s := applySchedule{due: due{do: doResync}, opts: c.opts.withDefaults()}
		s.retry = backoff{s.opts.RetryMin, s.opts.RetryMax, s.opts.RetryMin}
		for i, step := range c.steps {
			now, before := second(step.at), s.at
			if step.event(&s, now); i > 0 && step.due == c.steps[i-1].due {
				require.Equal(t, due{before, step.do}, s.due, name)
			} else {
				requireDue(t, now, step.due, step.do, s.due, name)
			}

			require.Equal(t, s.have && (s.do == doResync || s.denied), s.checkable(), name)
		}
	}
}

func TestScheduleOfLaterWork(t *testing.T) {
	t.Parallel()
	s := settleSchedule{due: due{do: doSettle},
		retry: backoff{time.Second, 4 * time.Second, time.Second}}
	for i, c := range []struct {
		at, calls, next int
		failed          bool
		due             int
	}{
		{at: 1, calls: 0, next: 9, due: 0}, // no call
		{at: 1, calls: 1, next: 9, due: 9},
		{at: 9, calls: 2, failed: true, due: 10},
		{at: 11, calls: 3, failed: true, due: 13},
		{at: 14, calls: 4, failed: true, due: 18},
		{at: 19, calls: 5, failed: true, due: 23},
		{at: 19, calls: 5, next: 99, due: 23}, // no call
		{at: 24, calls: 6, next: 25, due: 25},
		{at: 25, calls: 7, failed: true, due: 26},
		{at: 26, calls: 8, due: 0},
	} {
		next := time.Time{}
		if c.next > 0 {
			next = second(c.next)
		}
		s.settled(second(c.at), c.calls, next, c.failed)
		requireDue(t, second(c.at), c.due, doSettle, s.due, string(rune('0'+i)))
	}
}

func TestScheduleOfChecks(t *testing.T) {
	t.Parallel()
	s := checkSchedule{interval: time.Second, ration: wait.NewBudget(repairBurst, repairShare)}
	s.checked(second(1))
	requireDue(t, second(1), 2, doCheck, s.due, "each second")
	for i, want := range []action{doReapply, doReapply, doReapply, doReapply, doReapply, doDelay,
		0, 0} {
		got := s.damaged(second(2))
		require.Equal(t, want, got, i)
		if got == doReapply {
			s.ration.Spend(0)
		}
	}

	require.Equal(t, doReapply, s.damaged(second(3)), "a second later")
	s.ration.Spend(0)
	require.Equal(t, doDelay, s.damaged(second(3)), "it is said again")

	never := checkSchedule{interval: -1}
	never.checked(second(1))
	require.Zero(t, never.due)
}

func TestTheFirstActionIsNext(t *testing.T) {
	t.Parallel()
	rest, do := next(second(1), due{second(9), doApply}, due{second(3), doSettle}, due{})
	require.Equal(t, 2*time.Second, rest)
	require.Equal(t, doSettle, do)
	rest, _ = next(second(1), due{do: doApply})
	require.Equal(t, time.Duration(forever), rest)
	rest, do = next(second(5), due{second(4), doApply}, due{second(3), doCheck})
	require.Negative(t, rest)
	require.Equal(t, doCheck, do, "what has been due longest goes first")
}
