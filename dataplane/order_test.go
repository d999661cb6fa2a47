package dataplane_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// orders is the number of sequences of calls in each of these tests, one for each seed.
const orders = 150

// inAnyOrder runs a sequence of calls for each seed, each in its own bubble.
func inAnyOrder(t *testing.T, sequence func(*testing.T, *rand.Rand)) {
	t.Parallel()
	for seed := range uint64(orders) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { sequence(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

// fails makes calls of a backend fail now and then, like the kernel or a neighbour.
func fails(r *rand.Rand, b *memory.Backend) {
	call := []memory.Call{memory.CallCheck, memory.CallObserve, memory.CallIntegrity,
		memory.CallPlan, memory.CallCommit, memory.CallCleanup}[r.IntN(6)]
	b.Fail(call, 1+r.IntN(3), []error{errRefused, kernelerr.ErrConflict}[r.IntN(2)])
}

// flaky are flows whose deletion sometimes fails.
type flaky struct{ failing atomic.Bool }

func (f *flaky) Changed(servicemodel.State, *servicemodel.ChangeSet) {}

func (f *flaky) Settle(context.Context) (time.Duration, error) {
	if f.failing.Load() {
		return 0, errRefused
	}
	return 0, nil
}

// ordered is an engine whose methods are called in any order, and the facts that must hold for it.
// All its states have the first service.
type ordered struct {
	t       *testing.T
	r       *rand.Rand
	engine  *dataplane.Engine
	flows   *flaky
	kernels [2]*memory.Kernel
	at      int             // the kernel of the engine's backend
	backend *memory.Backend // the engine's backend
	closed  bool            // whether that backend is closed
	want    int             // the number of wanted services
	none    bool            // no state is wanted
	led     bool            // the first service was in a kernel, and no call has removed it
	foreign bool            // another program changed the kernel since the engine's last reading
	stale   bool            // the kernel before the switch cannot be cleaned up
	done    []string
	stop    func() // ends a Run
}

func newOrdered(t *testing.T, r *rand.Rand) *ordered {
	o := &ordered{t: t, r: r, none: true, flows: &flaky{}, stop: func() {},
		kernels: [2]*memory.Kernel{{}, {}}}
	o.backend = memory.New(o.kernels[0])
	o.engine = dataplane.New(o.backend, &dataplane.Config{Flows: o.flows})
	return o
}

// context returns a context that has ended, ends soon, or does not end.
func (o *ordered) context() context.Context {
	ctx := o.t.Context()
	if o.r.IntN(4) > 0 {
		return ctx
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(o.r.IntN(3))*4*time.Millisecond)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// asked records the request of a call, if the call got its turn.
func (o *ordered) asked(before dataplane.Revision, n int, none bool) {
	if o.engine.Status().Wanted != before {
		o.want, o.none = n, none
	}
}

// call makes a call, and returns its name.
func (o *ordered) call() (string, error) {
	ctx, n, before := o.context(), 1+o.r.IntN(4), o.engine.Status().Wanted
	switch o.r.IntN(16) {
	case 0, 1:
		o.engine.Set(services(n))
		o.asked(before, n, false)
		return fmt.Sprintf("set %d", n), nil
	case 2, 3:
		_, err := o.engine.Apply(ctx, services(n))
		o.asked(before, n, false)
		return fmt.Sprintf("apply %d", n), err
	case 4:
		p, err := o.engine.Plan(ctx, services(n))
		if err != nil || o.r.IntN(2) > 0 {
			return "plan", err
		}
		c := stored(o.t, p.Changes)
		_, err = o.engine.ApplyChanges(ctx, c)
		require.Equal(o.t, err == nil, o.engine.Status().Wanted != before, "%v", err)
		o.asked(before, 0, true)
		return fmt.Sprintf("apply changes %d", n), err
	case 5:
		_, err := o.engine.Observe(ctx)
		return "observe", err
	case 6:
		o.engine.Resync()
		return "resync", nil
	case 7:
		_, err := o.engine.Settle(ctx)
		return "settle", err
	case 8, 9:
		return o.change(ctx)
	case 10:
		o.led = o.led && o.r.IntN(3) > 0
		if o.led {
			return "no cleanup", nil
		}
		_, err := o.engine.Cleanup(ctx)
		o.asked(before, 0, true)
		return "cleanup", err
	case 11:
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return "wait", o.engine.Wait(limited, before)
	case 12, 13:
		o.run()
		return "run", nil
	case 14:
		o.kernels[o.at].Flush()
		o.led, o.foreign = false, true
		return "flush", nil
	}

	o.flows.failing.Store(o.r.IntN(2) > 0)
	if o.r.IntN(8) == 0 {
		o.closed = true
		return "close", o.backend.Close()
	}

	fails(o.r, o.backend)
	return "fail", nil
}

// run begins a Run, or ends the one in progress.
func (o *ordered) run() {
	if o.engine.Status().Running {
		o.stop()
		return
	}

	ctx, cancel := context.WithCancel(o.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- o.engine.Run(ctx, &dataplane.RunOptions{Resync: never, RetryMax: time.Second})
	}()
	o.stop = func() {
		cancel()
		<-ended
		o.stop = func() {}
	}

	synctest.Wait()
}

// change switches to a backend on the other kernel, or sometimes to another backend of the same
// instance.
func (o *ordered) change(ctx context.Context) (string, error) {
	at := 1 - o.at
	if o.r.IntN(5) == 0 {
		at = o.at
	}
	next := memory.New(o.kernels[at])
	if o.r.IntN(3) == 0 {
		fails(o.r, next)
	}
	lose := o.closed || o.r.IntN(4) == 0
	name := fmt.Sprintf("switch, lose %t, the same instance %t", lose, at == o.at)
	o.led = o.led && !lose && at != o.at
	change := o.engine.Switch
	if lose {
		change = o.engine.ForceSwitch
	}
	r, err := change(ctx, next)
	if r != nil {
		if at != o.at {
			o.at, o.stale = at, o.closed
		}
		o.backend, o.closed = next, false
	}

	return name, err
}

// check requires the facts that must hold between two calls.
func (o *ordered) check() {
	s := o.engine.Status()
	want := services(o.want)
	if o.none {
		want = servicemodel.State{}
	}
	services, endpoints, _ := s.State.Since(want)
	require.Zero(o.t, services+endpoints, "what is wanted")
	require.LessOrEqual(o.t, s.Applied, s.Wanted)
	if k := o.kernels[o.at].Table(); o.foreign {
		o.foreign = !s.Held.Equal(k)
	} else if s.Held != nil {
		require.True(o.t, s.Held.Equal(k), "what is held:\n%s",
			servicemodel.Diff(k, s.Held))
	}

	leads := func(k *memory.Kernel) bool { return k.Table().Frontend(frontendKey(1)) != nil }
	if leads(o.kernels[0]) || leads(o.kernels[1]) {
		o.led = true
	} else {
		require.False(o.t, o.led, "nobody leads the packets of the first service")
	}
}

// end makes everything succeed, and requires that Run makes the kernel hold exactly the wanted
// state.
func (o *ordered) end() {
	o.flows.failing.Store(false)
	for _, c := range []memory.Call{memory.CallCheck, memory.CallObserve, memory.CallIntegrity,
		memory.CallPlan, memory.CallCommit, memory.CallCleanup} {
		o.backend.Fail(c, 0, nil)
	}

	if o.closed {
		_, _ = o.change(o.t.Context())
		o.end()
		return
	}

	if !o.engine.Status().Running {
		o.run()
	}
	for range 2 {
		time.Sleep(time.Minute)
		synctest.Wait()
		s, k := o.engine.Status(), o.kernels[o.at]
		if o.none {
			break
		}
		require.False(o.t, s.Pending())
		requireHolds(o.t, k, services(o.want))
		require.True(o.t, s.Held.Equal(k.Table()))
		require.True(o.t, o.stale || o.kernels[1-o.at].Table().Len() == 0)
		k.Flush()
	}

	o.stop()
}

// Calls are made in any order. At most one state is wanted, Run applies it in the end, Status is
// correct, and balanced services stay balanced.
func TestAnEngineIsCalledInAnyOrder(t *testing.T) {
	inAnyOrder(t, func(t *testing.T, r *rand.Rand) {
		o := newOrdered(t, r)
		defer func() {
			if t.Failed() {
				t.Logf("calls: %q", o.done)
			}
			o.stop()
		}()

		for range 40 {
			name, err := o.call()
			o.done = append(o.done, fmt.Sprintf("%s: %v", name, err))
			if o.r.IntN(3) == 0 {
				time.Sleep(time.Duration(o.r.IntN(1000)) * time.Millisecond)
			}
			synctest.Wait()
			o.check()
		}

		o.end()
	})
}

// slowly gives other goroutines time during a call.
func slowly(context.Context) error {
	time.Sleep(time.Millisecond)
	return nil
}

// Many goroutines call an engine while it runs and switches. All calls end, the first service is
// balanced all the time, and in the end one backend holds the newest state.
func TestAnEngineIsCalledByManyAtOnce(t *testing.T) {
	inAnyOrder(t, func(t *testing.T, r *rand.Rand) {
		o := newOrdered(t, r)
		ok(o.engine.Apply(t.Context(), services(1)))(t)
		o.run()
		defer o.stop()
		var kernels []*memory.Kernel // the first kernel, and the kernels of later switches
		var mu sync.Mutex
		kernels = append(kernels, o.kernels[0])
		leads := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.ContainsFunc(kernels, func(k *memory.Kernel) bool {
				return k.Table().Frontend(frontendKey(1)) != nil
			})
		}

		var callers sync.WaitGroup
		for caller := range uint64(4) {
			r := rand.New(rand.NewPCG(r.Uint64(), caller))
			callers.Go(func() {
				for range 15 {
					time.Sleep(time.Duration(r.IntN(4)) * time.Millisecond)
					ctx, cancel := context.WithTimeout(t.Context(),
						time.Duration(r.IntN(50))*time.Millisecond)
					switch n := 1 + r.IntN(4); r.IntN(8) {
					case 0:
						o.engine.Set(services(n))
					case 1:
						_, _ = o.engine.Apply(ctx, services(n))
					case 2:
						_, _ = o.engine.Plan(ctx, services(n))
					case 3:
						_, _ = o.engine.Observe(ctx)
					case 4:
						o.engine.Resync()
					case 5:
						_, _ = o.engine.Settle(ctx)
					case 6:
						_ = o.engine.Wait(ctx, o.engine.Status().Wanted)
					case 7:
						next := &memory.Kernel{}
						mu.Lock()
						kernels = append(kernels, next)
						mu.Unlock()
						b := memory.New(next)
						b.Before(memory.CallCommit, slowly)
						b.Fail([]memory.Call{memory.CallCheck, memory.CallObserve,
							memory.CallCommit}[r.IntN(3)], r.IntN(3), kernelerr.ErrConflict)
						_, _ = o.engine.Switch(ctx, b)
					}

					cancel()
					assert.True(t, leads(), "nobody leads the packets of the first service")
				}
			})
		}

		callers.Wait()
		o.engine.Set(services(3))
		last := &memory.Kernel{}
		ok(o.engine.Switch(t.Context(), memory.New(last)))(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		s := o.engine.Status()
		require.False(t, s.Pending())
		requireHolds(t, last, services(3))
		for range 2 { // Run follows only the last backend
			last.Flush()
			time.Sleep(time.Minute)
			synctest.Wait()
			requireHolds(t, last, services(3))
		}
	})
}

// Parts hold the last state of each owner, whatever the order of calls.
func TestPartsAreCalledInAnyOrder(t *testing.T) {
	inAnyOrder(t, func(t *testing.T, r *rand.Rand) {
		b := memory.New(nil)
		parts := dataplane.NewParts(b, &dataplane.PartsConfig{Flows: &flaky{}})
		held := map[string]int{}
		ctxs := &ordered{t: t, r: r}
		for range 40 {
			ctx, n := ctxs.context(), 1+r.IntN(3)
			owner := fmt.Sprintf("owner-%d", r.IntN(3))
			state := published(owner, byte(n), []uint16{80, 81, 82}[:n]...)
			var err error
			switch r.IntN(8) {
			case 0, 1, 2:
				if _, err = parts.Apply(ctx, owner, state); err == nil {
					held[owner] = n
				}
			case 3:
				if _, err = parts.Remove(ctx, owner); err == nil {
					delete(held, owner)
				}
			case 4:
				if _, err = parts.Keep(ctx, func(o string) bool { return o != owner }); err == nil {
					delete(held, owner)
				}
			case 5:
				_, err = parts.Plan(ctx, owner, state)
			case 6:
				_, err = parts.Settle(ctx)
			default:
				fails(r, b)
			}

			want := 0
			for o, n := range held {
				part := b.Kernel().Table().Part(o)
				require.Equal(t, n, part.Len(), "%s, after %v", o, err)
				want += n
			}

			require.Equal(t, want, b.Kernel().Table().Len())
		}
	})
}
