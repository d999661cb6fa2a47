package dataplanetest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// KilledOptions describe other events while a program is killed, and the requirements afterwards.
type KilledOptions struct {
	// Delay is the average time that the program lives after its changes. Zero means 3 ms.
	Delay time.Duration
	// Damage are commands that change the kernel in the network namespace. Now and then, one of
	// them runs. After that, the test does not judge the content of the kernel until the next
	// apply. Without commands, the instance is removed.
	Damage []string
	// Between judges the content of the kernel after a kill, for a backend without transactions:
	// something between the states. Nil means that the content must be one of the states.
	Between func(ns *netnstest.NS, states []servicemodel.State) error
	// Harmless are lines of drift that a kill may leave.
	Harmless []string
}

// killedChild is set in the process that will be killed. Its value is the number of the first state
// to apply. The network namespace of the process is file descriptor 3, and it reports on file
// descriptor 4.
const killedChild = "KERNLB_TEST_KILLED"

// Killed starts a program that applies one state after the other, and kills it at a random moment,
// again and again. By default it kills 40 times, each time after five changes on average.
// KERNLB_TEST_KILLS sets the number of kills, each of which then comes after 50 changes. The kernel
// must then hold the previous state, or the state that was being applied. Now and then another
// program damages the instance or applies a state. After each kill, the next apply must make the
// kernel hold the wanted state. The test must do nothing before it calls Killed, which makes it
// parallel.
func Killed(t *testing.T, under Backend, states []servicemodel.State, o KilledOptions) {
	applyIfKilled(under, states)
	t.Parallel()
	ns := under.namespace(t)
	kills, lives := 40, 5
	if wanted := fromEnv(t, "KERNLB_TEST_KILLS", 0, strconv.Atoi); wanted > 0 {
		kills, lives = wanted, 50
	}
	o.Delay = cmp.Or(o.Delay, 3*time.Millisecond)
	k := &killing{KilledOptions: o, lives: lives, t: t, under: under, ns: ns, states: states,
		rng: rand.New(rand.NewPCG(1, 2))}
	for k.round = range kills {
		possible, known := k.kill()
		switch {
		case !known:
		case k.Between != nil:
			k.must("the kill", k.Between(k.ns, possible))
		default:
			k.must("the kill", holdsOne(t.Context(), under, ns, possible, k.Harmless))
		}

		k.held = k.any()
		k.must("the next apply", under.apply(t.Context(), ns, k.held))
		k.must("after the next apply",
			holdsOne(t.Context(), under, ns, []servicemodel.State{k.held}, nil))
	}

	t.Logf("%d changes, %d kills: %d while a state was being applied; %d damages, %d other writers",
		k.changes, kills, k.during, k.damages, k.others)
}

// killing is a test by Killed.
type killing struct {
	KilledOptions
	lives  int // the average number of changes before the program is killed
	t      *testing.T
	under  Backend
	ns     *netnstest.NS
	states []servicemodel.State
	rng    *rand.Rand
	round  int
	held   servicemodel.State // the content of the kernel before a round

	changes, during, damages, others int
}

func (k *killing) any() servicemodel.State { return k.states[k.rng.IntN(len(k.states))] }

// must ends the test if there is an error.
func (k *killing) must(what string, err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatalf("kill %d: %s: %v", k.round, what, err)
	}
}

// kill starts the program and kills it. It returns the states that the kernel may hold after that;
// known is false if the test cannot know them.
func (k *killing) kill() (possible []servicemodel.State, known bool) {
	first := k.rng.IntN(len(k.states))
	process, report, err := startKilled(k.t, k.ns, first)
	k.must("start the program", err)
	defer report.Close()
	defer process.Kill() //nolint:errcheck // it is dead, unless the test has failed
	var told strings.Builder
	in := bufio.NewReader(io.TeeReader(report, &told))
	for range 1 + 2*k.rng.IntN(2*k.lives) { // each line reports the begin or the end of a change
		k.must("the program ended", errOf(in.ReadString('\n')))
	}
	time.Sleep(time.Duration(k.rng.ExpFloat64() * float64(k.Delay)))
	possible, known = k.meanwhile()
	k.must("kill the program", kill(process))
	k.must("read its report", errOf(io.Copy(io.Discard, in)))
	return append(possible, k.begun(told.String(), first)...), known
}

// meanwhile acts as other programs before the program is killed. It returns the states that these
// programs may leave; known is false if the test cannot know them.
func (k *killing) meanwhile() (possible []servicemodel.State, known bool) {
	switch k.rng.IntN(5) {
	case 0:
		k.damages++
		if n := len(k.Damage); n > 0 {
			command := strings.Fields(k.Damage[k.rng.IntN(n)])
			k.must("the damage", errOf(runIn(k.t.Context(), k.ns, nil, command...)))
			return nil, false
		}

		k.must("cleanup", k.under.cleanup(k.t.Context(), k.ns))
		return []servicemodel.State{{}}, true
	case 1:
		k.others++
		s := k.any()
		k.must("the other writer", k.under.apply(k.t.Context(), k.ns, s))
		return []servicemodel.State{s}, true
	}

	return nil, true
}

// begun reads the program's report. It returns the last state that the program applied, or that the
// kernel held before, and the state that it was applying.
func (k *killing) begun(told string, first int) []servicemodel.State {
	begun, done := strings.Count(told, "begin\n"), strings.Count(told, "done\n")
	k.changes += begun
	l := []servicemodel.State{k.held}
	if done > 0 {
		l[0] = k.states[(first+done-1)%len(k.states)]
	}
	if begun > done {
		k.during++
		l = append(l, k.states[(first+begun-1)%len(k.states)])
	}

	return l
}

// startKilled starts the running test in another process, which applies states from the first on
// until it is killed, and reports that.
func startKilled(t *testing.T, ns *netnstest.NS, first int) (p *os.Process, report *os.File,
	err error) {
	report, theirs, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	file, err := ns.NetNS().Open()
	if err == nil {
		defer file.Close()
		p, err = os.StartProcess("/proc/self/exe",
			[]string{os.Args[0], "-test.run=^" + t.Name() + "$"}, &os.ProcAttr{
				Env:   append(os.Environ(), killedChild+"="+strconv.Itoa(first)),
				Files: []*os.File{nil, nil, os.Stderr, file, theirs},
			})
	}

	if err != nil {
		report.Close()
	}
	return p, report, err
}

// kill kills a program, which must not have ended before.
func kill(p *os.Process) error {
	if err := p.Kill(); err != nil {
		return err
	}
	state, err := p.Wait()
	if err == nil && state.String() != "signal: killed" {
		err = fmt.Errorf("it was not killed: %v", state)
	}
	return err
}

// applyIfKilled applies states until the process is killed, if startKilled started it. It tries
// again after conflicts with other programs.
func applyIfKilled(under Backend, states []servicemodel.State) {
	from := os.Getenv(killedChild)
	if from == "" {
		return
	}
	report := os.NewFile(4, "report")
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "the program that is to be killed:", err)
			os.Exit(1)
		}
	}

	first, err := strconv.Atoi(from)
	check(err)
	b, err := under.Open(netns.FD(3))
	check(err)
	engine := dataplane.New(b, nil)
	for i := first; ; i++ {
		check(errOf(fmt.Fprintln(report, "begin"))) // it fails if the test was killed
		err := kernelerr.ErrConflict
		for errors.Is(err, kernelerr.ErrConflict) {
			_, err = settled(engine.Apply(context.Background(), states[i%len(states)]))
		}
		check(err)
		check(errOf(fmt.Fprintln(report, "done")))
	}
}
