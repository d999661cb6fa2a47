package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rawnl/rawnltest"
	"github.com/kernlb/kernlb/servicemodel"
)

// FaultyBackend is a backend whose conversation with the kernel can be made to go wrong.
type FaultyBackend struct {
	Backend
	// OpenFaulty opens it with the sockets that the faults wrap.
	OpenFaulty func(netns int, f *rawnltest.Faults) (dataplane.Backend, error)
	// Between judges what the kernel holds after an apply that failed, for a backend without
	// transactions. Nil means that it must be one of the states.
	Between func(ns *netnstest.NS, states []servicemodel.State) error
}

// faultPatience is how long an apply may take that goes wrong: far longer than all retries.
const faultPatience = 30 * time.Second

// faultStep is one call in how many a fault hits by default, and knowingStep the same for an engine
// that knows what the kernel holds: then, a commit is among few calls.
const (
	faultStep   = 17
	knowingStep = 5
)

// Faulted lets each call to the kernel go wrong in turn, in each of the ways of [rawnltest.All],
// while an engine takes the kernel from one state to another: one that has to read first, and one
// that knows what is there. The apply succeeds, or its error names the backend and wraps what went
// wrong. The kernel then holds one of the states, and the next apply of the same engine ends at the
// one that is wanted. Where each call goes wrong, the apply fails, and in time. By default, each
// fault hits one call in 17, or in five of an engine that knows the kernel; with
// KERNLB_TEST_FAULTS=all, each fault hits each call.
//
// machine returns a backend for a namespace of its own, and is called for each fault.
func Faulted(t *testing.T, machine func() FaultyBackend) {
	netnstest.Require(t)
	for i, fault := range rawnltest.All() {
		first, step := 1+i%faultStep, faultStep
		if os.Getenv("KERNLB_TEST_FAULTS") == "all" {
			first, step = 1, 1
		}
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			under := machine()
			under.need(t)
			ns, err := netnstest.NewNS(t.Name())
			if err != nil {
				t.Fatal(err)
			}
			defer ns.Close()
			f := &faulted{t: t, under: under, ns: ns, fault: fault, first: first, step: step}
			f.from, f.to = faultedStates()
			if err := f.prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, knows := range []bool{false, true} {
				if !f.calls(knows) {
					return
				}
			}
			t.Logf("%d calls went wrong, %d applies failed", f.hits, f.failures)
		})
	}
}

// faulted is a test of one fault.
type faulted struct {
	t        *testing.T
	under    FaultyBackend
	ns       *netnstest.NS
	fault    rawnltest.Fault
	from, to servicemodel.State
	first    int // call that goes wrong
	step     int // to the next one

	hits, failures int
}

// calls lets each call go wrong in turn, and then all.
func (f *faulted) calls(knows bool) bool {
	step := f.step
	if knows {
		step = min(step, knowingStep)
	}
	for n := (f.first-1)%step + 1; ; n += step {
		hits, err := f.once(knows, n)
		if err != nil {
			f.t.Errorf("call %d, of an engine that knows the kernel: %t: %v", n, knows, err)
			return false
		}
		if hits == 0 {
			break
		}
	}
	if f.hits == 0 {
		f.t.Error("no call went wrong")
	}
	_, err := f.once(knows, 0)
	if err != nil {
		f.t.Errorf("each call, of an engine that knows the kernel: %t: %v", knows, err)
	}
	return err == nil
}

// once lets the n-th call go wrong, or each for 0. It leaves the states exchanged, so that the next
// one begins where it ended.
func (f *faulted) once(knows bool, n int) (hits int, err error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), faultPatience)
	defer cancel()
	faults := rawnltest.NewFaults()
	b, err := f.under.OpenFaulty(f.ns.Fd(), faults)
	if err != nil {
		return 0, err
	}
	defer b.Close()
	e := dataplane.New(b, nil)
	if knows {
		if _, err := e.Apply(ctx, f.from); err != nil {
			return 0, fmt.Errorf("before: %w", err)
		}
	}
	faults.Arm(f.fault, n)
	_, err = e.Apply(ctx, f.to)
	hits = faults.Disarm()
	f.hits += hits
	if err := f.judge(ctx, b.Name(), hits, n, err); err != nil {
		return hits, err
	}
	if _, err := e.Apply(ctx, f.to); err != nil {
		return hits, fmt.Errorf("the next apply: %w", err)
	}
	if err := f.holds(ctx, f.to); err != nil {
		return hits, fmt.Errorf("after the next apply: %w", err)
	}
	f.from, f.to = f.to, f.from
	return hits, nil
}

// prepare brings the kernel to the first state.
func (f *faulted) prepare(ctx context.Context) error {
	b, err := f.under.Open(f.ns.Fd())
	if err != nil {
		return err
	}
	defer b.Close()
	_, err = dataplane.New(b, nil).Apply(ctx, f.from)
	return err
}

// judge judges an apply, and what the kernel holds after it.
func (f *faulted) judge(ctx context.Context, backend string, hits, n int, err error) error {
	switch {
	case err == nil && n == 0 && hits > 0 && !f.fault.Dump:
		return errors.New("each call went wrong, and the apply succeeded")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the apply took more than %v: %w", faultPatience, err)
	case err == nil:
		return f.holds(ctx, f.to)
	case hits == 0:
		return fmt.Errorf("nothing went wrong, and the apply failed: %w", err)
	}
	f.failures++
	if !strings.Contains(err.Error(), backend+": ") {
		return fmt.Errorf("the error does not name the backend: %w", err)
	}
	if !f.fault.Explains(err, rawnl.ErrAnswersLost, rawnl.ErrMalformed, rawnl.ErrDumpInterrupted,
		dataplane.ErrConflict) {
		return fmt.Errorf("the error does not say what went wrong: %w", err)
	}
	if f.under.Between != nil {
		return f.under.Between(f.ns, []servicemodel.State{f.from, f.to})
	}
	return f.holds(ctx, f.from, f.to)
}

// faultedStates are two states: an endpoint is replaced, a service goes, and another one comes.
func faultedStates() (from, to servicemodel.State) {
	onePort := func(s *servicemodel.Service) { s.Ports = s.Ports[:1] }
	going, coming := web(named("going", clusterIP2), onePort, sticky(time.Hour)),
		web(named("coming", unusedIP), onePort)
	base := state(podCIDRs(thisNode()), web(onePort, sticky(time.Minute)), eps("pod2", "remote1"))
	from = and(base, going, eps("pod1", "pod2"))
	to = and(base.WithEndpoints(web().Name, eps("pod2", "remote2")), coming, eps("pod3"))
	return from, to
}

// holds requires that the kernel holds one of the states, and nothing else.
func (f *faulted) holds(ctx context.Context, states ...servicemodel.State) error {
	return holdsOne(ctx, f.under.Backend, f.ns, states, nil)
}
