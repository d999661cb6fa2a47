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
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
	"github.com/kernlb/kernlb/servicemodel"
)

// FaultyBackend is a backend with faults in its conversation with the kernel.
type FaultyBackend struct {
	Backend
	// OpenWith opens the backend in a network namespace. c configures its connections to the
	// kernel, and its logger.
	OpenWith func(c rawnl.Config) (backends.Backend, error)
	// Between judges the content of the kernel after a failed apply, for a backend without
	// transactions. Nil means that it must be one of the states.
	Between func(ns *netnstest.NS, states []servicemodel.State) error
}

// openFaulty opens the backend with sockets that the faults wrap.
func (b *FaultyBackend) openFaulty(ns *netnstest.NS, f *rawnltest.Faults) (backends.Backend,
	error) {
	return b.OpenWith(rawnl.Config{NetNS: ns.NetNS(),
		Wrap: func(s rawnl.Socket) rawnl.Socket { return f.Wrap(s) }})
}

// faultPatience limits the time of an apply with a fault: far longer than all retries.
const faultPatience = 30 * time.Second

// By default, a fault hits one call in faultStep. For an engine that knows the kernel's content, it
// hits one call in knowingStep, because such an engine makes few calls around a commit.
const (
	faultStep   = 17
	knowingStep = 5
)

// Faulted makes each call to the kernel fail in turn, in each of the ways of [rawnltest.All], while
// an engine takes the kernel from one state to another. It does so for an engine that has to read
// first, and for an engine that knows the content of the kernel. The apply must succeed, or its
// error must name the backend and wrap the fault. The kernel must then hold one of the states, and
// after the next apply of the same engine it must hold the desired state. If every call fails, the
// apply must fail, and in time. By default, each fault hits one call in 17, or in five of an engine
// that knows the kernel; with KERNLB_TEST_FAULTS=all, each fault hits each call.
//
// machine returns a backend for a namespace of its own. Faulted calls it for each fault.
func Faulted(t *testing.T, machine func() FaultyBackend) {
	netnstest.Require(t)
	for i, fault := range rawnltest.All() {
		first, step := 1+i%faultStep, faultStep
		if os.Getenv("KERNLB_TEST_FAULTS") == "all" {
			first, step = 1, 1
		}
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			f := newFaulted(t, machine())
			f.fault, f.first, f.step = fault, first, step
			must(t, f.under.apply(t.Context(), f.ns, f.from))
			f.calls(false)
			f.calls(true)
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

// newFaulted creates a namespace, and the states of the test.
func newFaulted(t *testing.T, under FaultyBackend) *faulted {
	t.Helper()
	f := &faulted{t: t, under: under, ns: under.namespace(t)}
	f.from, f.to = faultedStates()
	return f
}

// calls makes each call fail in turn, and then all calls at once.
func (f *faulted) calls(knows bool) {
	try := func(n int) int {
		hits, err := f.once(knows, n)
		if err != nil {
			f.t.Fatalf("call %d (0: each), of an engine that knows the kernel: %t: %v", n, knows,
				err)
		}

		return hits
	}

	step := f.step
	if knows {
		step = min(step, knowingStep)
	}
	first := (f.first-1)%step + 1
	n := first
	for try(n) > 0 {
		n += step
	}

	// An engine that knows the kernel dumps nothing.
	if n == first && try(1) == 0 && !(knows && f.fault.Dump) {
		f.t.Errorf("no call went wrong, of an engine that knows the kernel: %t", knows)
	}
	try(0)
}

// once makes the n-th call fail, or each call if n is 0. It exchanges the states, so that the next
// round begins where this one ended.
func (f *faulted) once(knows bool, n int) (hits int, err error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), faultPatience)
	defer cancel()
	faults := rawnltest.NewFaults()
	b, err := f.under.openFaulty(f.ns, faults)
	if err != nil {
		return 0, err
	}
	defer b.Close()
	e := dataplane.New(b, nil)
	if knows {
		if _, err := settled(e.Apply(ctx, f.from)); err != nil {
			return 0, fmt.Errorf("before: %w", err)
		}
	}

	faults.Arm(f.fault, n)
	_, err = settled(e.Apply(ctx, f.to))
	hits = faults.Disarm()
	f.hits += hits
	if err := f.judge(ctx, b.Name(), hits, n, err); err != nil {
		return hits, err
	}
	if _, err := settled(e.Apply(ctx, f.to)); err != nil {
		return hits, fmt.Errorf("the next apply: %w", err)
	}
	if err := f.holds(ctx, f.to); err != nil {
		return hits, fmt.Errorf("after the next apply: %w", err)
	}
	f.from, f.to = f.to, f.from
	return hits, nil
}

// judge judges an apply and the content of the kernel after it.
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
		kernelerr.ErrConflict) {
		return fmt.Errorf("the error does not say what went wrong: %w", err)
	}

	if f.under.Between != nil {
		return f.under.Between(f.ns, []servicemodel.State{f.from, f.to})
	}
	return f.holds(ctx, f.from, f.to)
}

// faultedStates returns two states. The second has another endpoint in a service, and one service
// instead of another.
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
