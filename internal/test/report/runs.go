package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
)

// run is a way in which the Makefile runs tests.
type run struct {
	parts []string // that must run
	tests []tests
	env   []string // of the tests
	unset []string // the values of variables that the environment lacks
	skip  []string // regular expressions for names of tests that do not run, without "Test"
}

// tests are arguments of go test, in the directory of a module. Packages come last.
type tests struct{ dir, flags, list string }

// work are the tests of all modules in go.work. Many tests wait for packets, so the number of
// packages that run at the same time is twice the number of processors. The packages that take
// longest begin first.
var work = tests{".", fmt.Sprintf("-timeout 30m -p %d", 2*runtime.NumCPU()),
	"./nftables ./iptables ./ipvs work"}

// lazy makes compilers and tests collect garbage less often, which saves a fifth of the processor
// time.
const lazy = "GOGC=400"

var runs = map[string]run{
	"test": {parts: []string{"netns", "prometheus"}, tests: []tests{work},
		unset: []string{lazy, "KERNLB_TEST_APISERVER=none", "KERNLB_TEST_FETCH=none",
			"KERNLB_TEST_VM=none"}},
	"race": {tests: []tests{{work.dir, work.flags + " -race -short -vet=off", work.list}},
		unset: []string{lazy}, env: []string{"CGO_ENABLED=1"}, skip: alone},
	"api": {parts: []string{"vm", "apiserver"}, tests: []tests{
		{"examples/kubeproxy", "-timeout 15m", "."},
		{".", "", "./internal/test/release"},
		{"internal/test/vm", "-timeout 15m", "."}},
		env: []string{"KERNLB_TEST_APISERVER=", "KERNLB_TEST_FETCH=", "KERNLB_TEST_VM="}},
	"browser": {parts: []string{"browser"},
		tests: []tests{{".", "-count 1 -run Browser", "./dataplane/page"}}},
	"peers": {parts: []string{"record"}, tests: []tests{{"internal/test/winkernel", "", "./..."}},
		env: []string{"GOWORK=off"}},
}

// alone are tests with one goroutine or many processes. The race detector takes minutes for them
// and finds nothing.
var alone = []string{"RandomPackets", "KernelHoldsWhatWasApplied", "EachCallGoesWrong",
	"PartsAreWhatTheModelSays", "SlotsAreDrawnFairly", "ReadingsAgree",
	"PlansLeaveWhatTheyWouldWriteFromNothing", "EveryElementHasItsPlaceOrIsDrift", "EveryField",
	"FiftyAtOnce", "ChainKilled", "KilledBetweenAnyTwoSteps", "SameOutcomeAsPortmap",
	"AnEndpointOfAWholeServiceCostsLittle", "ALargeBatchIsAllocatedOnce", "GarbledAnswers",
	"NoError(Is|AboutPartsIs|OfASweepIs)Swallowed", "ALookAfterACommitFindsNothing"}

// packages counts the packages of tests.
func (r *run) packages(t tests) (int, error) {
	out, err := r.command("list", t.dir, t.list).Output()
	return len(strings.Fields(string(out))), err
}

// test returns the command that runs tests.
func (r *run) test(t tests, args []string) *exec.Cmd {
	c := r.command("test", t.dir, "-json "+t.flags)
	if len(r.skip) > 0 {
		c.Args = append(c.Args, "-skip", "Test("+strings.Join(r.skip, "|")+")")
	}
	c.Args = slices.Concat(c.Args, strings.Fields(t.list), args)
	return c
}

// command returns a command of go in a directory.
func (r *run) command(name, dir, args string) *exec.Cmd {
	c := exec.Command("go", append([]string{name, "-C", dir}, strings.Fields(args)...)...)
	c.Env = slices.Concat(r.unset, os.Environ(), r.env) // the last value of a variable counts
	c.Stderr = os.Stderr
	return c
}
