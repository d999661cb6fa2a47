// Package law tests that an accepted state keeps its meaning over any later call, time and commit:
// after any sequence of calls, the kernel has the same objects as if a new program had applied the
// state to a new kernel, except for the order of slots and for weights that still grow.
package law

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// Machine is a kernel with two instances, for one sequence of calls.
type Machine struct {
	// Open opens instance 0 or 1, like a new process.
	Open func(at int) (backends.Backend, error)
	// Check returns the backend's refusals. Nil refuses nothing.
	Check func(*servicemodel.ChangeSet) error
	// Node, if set, removes settings of a node that the backend refuses.
	Node func(*servicemodel.Node)
	// Touch commits outside an instance, and changes nothing.
	Touch func(at int)
	// TouchedOnce says that the backend reports each foreign commit only once.
	TouchedOnce bool
	// Harms are kinds of damage by other programs to an instance.
	Harms []Harm
	// Fault, if set, makes some call to the kernel fail until end is called.
	Fault func(r *rand.Rand) (name string, end func())
	// Users, if set, are rules of the user.
	Users Users
	// Part, if set, wraps the backend of parts.
	Part func(b backends.Backend) backends.Backend
}

// Harm is damage by another program to an instance. Its choices come from r.
type Harm struct {
	Name string
	Do   func(at int, r *rand.Rand)
	// Settings says that the settings of an instance outlive it, so that its parts can repair it.
	Settings bool
}

// Users are rules of the user that outlive the commits of an instance.
type Users interface {
	// Lost names the rules of an instance that are gone, or returns "". It adds rules to chains
	// without rules. served says by family whether the instance had frontends of the family since
	// the last call.
	Lost(at int, served map[servicemodel.Family]bool) string
}

// Test is a law with the machines on which it is tried.
type Test struct {
	// Sequences is the number of sequences. With -short, a quarter of them is tried, because they
	// take the race detector minutes. KERNLB_TEST_SEQUENCES overrides it. KERNLB_TEST_SEED is the
	// number of the first sequence. If only KERNLB_TEST_SEED is set, only that sequence is tried.
	Sequences uint64
	// Workers is the number of sequences that run at the same time. Zero means one.
	Workers uint64
	// New returns a function that builds a machine for a sequence. A worker runs one sequence after
	// the other. r makes the choices.
	New func(t *testing.T) func(t *testing.T, r *rand.Rand) *Machine
}

// Engines tries sequences of calls of engines.
func Engines(t *testing.T, l Test) { l.run(t, beginEngine) }

// Parts tries sequences of calls of [dataplane.Parts].
func Parts(t *testing.T, l Test) { l.run(t, beginParts) }

// sequence is a sequence of calls.
type sequence interface {
	// step takes a step, and returns its name. r makes all choices of the step.
	step(r *rand.Rand) string
	// wrong describes the fault after a step, or returns "".
	wrong() string
	end()
}

type beginning func(t *testing.T, seed uint64, m *Machine) sequence

// run tries the sequences.
func (l Test) run(t *testing.T, begin beginning) {
	t.Parallel()
	from, n, workers := uint64(0), l.Sequences, max(1, l.Workers)
	if testing.Short() {
		n /= 4
	}
	if s := os.Getenv("KERNLB_TEST_SEED"); s != "" {
		from, n, workers = must.OK(strconv.ParseUint(s, 10, 64))(t), 1, 1
	}
	if s := os.Getenv("KERNLB_TEST_SEQUENCES"); s != "" {
		n = must.OK(strconv.ParseUint(s, 10, 32))(t)
	}
	for worker := range workers {
		t.Run(strconv.FormatUint(worker, 10), func(t *testing.T) {
			t.Parallel()
			machine := l.New(t)
			for seed := from + worker; seed < from+n; seed += workers {
				(&trial{t: t, seed: seed, machine: machine, begin: begin}).run()
			}
		})
	}
}

// trial is the test of one sequence.
type trial struct {
	t       *testing.T
	seed    uint64
	machine func(t *testing.T, r *rand.Rand) *Machine
	begin   beginning
}

// run requires that nothing is wrong after any step. A sequence that fails is repeated without the
// steps that it does not need to fail.
func (l *trial) run() {
	if wrong, _ := l.without(nil); wrong == "" {
		return
	}
	skip := map[int]bool{}
	for i := range steps {
		skip[i] = true
		if w, _ := l.without(skip); w == "" {
			delete(skip, i)
		}
	}

	wrong, names := l.without(skip)
	l.t.Fatalf("KERNLB_TEST_SEED=%d: after\n%s\n%s", l.seed, strings.Join(names, "\n"), wrong)
}

// steps is the length of a sequence.
const steps = 14

// without takes the steps that are not in skip, in a new bubble. It describes the fault after the
// last step.
func (l *trial) without(skip map[int]bool) (wrong string, names []string) {
	synctest.Test(l.t, func(t *testing.T) {
		s := l.begin(t, l.seed, l.machine(t, rand.New(rand.NewPCG(l.seed, 1<<42))))
		defer s.end()
		for i := 0; i < steps && wrong == ""; i++ {
			if !skip[i] {
				names = append(names, s.step(rand.New(rand.NewPCG(l.seed, uint64(i)))))
				wrong = s.wrong()
			}
		}
	})

	return wrong, names
}
