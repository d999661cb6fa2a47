package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// printed is the output of go test -json for a run with good, bad and skipped tests, a package that
// does not build, and a package that takes too long.
var printed = strings.ReplaceAll(`{"Action":"run","Package":"MODULE/a","Test":"TestGood"}
{"Action":"pass","Package":"MODULE/a","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"MODULE/a","Test":"TestVM","Output":"=== RUN   TestVM\n"}
{"Action":"output","Package":"MODULE/a","Test":"TestVM","Output":"    x_test.go:3: missing: x\n"}
{"Action":"output","Package":"MODULE/a","Test":"TestVM","Output":"--- SKIP: TestVM (0.00s)\n"}
{"Action":"skip","Package":"MODULE/a","Test":"TestVM"}
{"Action":"skip","Package":"MODULE/a","Test":"TestSuite/one"}
{"Action":"pass","Package":"MODULE/a","Test":"TestSuite"}
{"Action":"pass","Package":"MODULE/a","Elapsed":1.5}
{"Action":"output","Package":"MODULE/b","Test":"TestBad","Output":"    y_test.go:9: wrong\n"}
{"Action":"fail","Package":"MODULE/b","Test":"TestBad","Elapsed":2}
{"Action":"fail","Package":"MODULE/b","Elapsed":2}
not json
{"Action":"build-output","ImportPath":"MODULE/c","Output":"c.go:1:1: undefined: x\n"}
{"Action":"output","Package":"MODULE/d","Test":"TestLong","Output":"panic: test timed out\n"}
{"Action":"output","Package":"MODULE/d","Output":"FAIL\n"}
{"Action":"fail","Package":"MODULE/d","Elapsed":1}
`, "MODULE", "github.com/kernlb/kernlb")

func TestReport(t *testing.T) {
	t.Parallel()
	r := newReport()
	r.packages = 3
	var out bytes.Buffer
	require.NoError(t, r.read(strings.NewReader(printed), &out))
	r.print(&out, []string{"vm: x"}, []string{"y"})
	require.Equal(t, ` 0:00  1/3  pass a 1.5s
FAIL github.com/kernlb/kernlb/b TestBad (2.00s)
    y_test.go:9: wrong
 0:00  2/3  fail b 2s
not json
c.go:1:1: undefined: x
 0:00  3/3  fail d 1s
UNFINISHED github.com/kernlb/kernlb/d TestLong
panic: test timed out
FAIL
skipped    1: missing: x
skipped    1: no reason given
NOT RUN vm: x
NOT LISTED y
2 passed, 1 failed, 2 skipped, in 0s
`, out.String())
}

// While tests run and no package ends, a line names the running tests.
func TestItTellsHowFarTheTestsAre(t *testing.T) {
	t.Parallel()
	r := newReport()
	r.packages, r.start = 2, r.start.Add(-time.Hour)
	r.told = r.start
	var out bytes.Buffer
	r.event(&out, event{Action: "start", Package: module + "b"})
	r.event(&out, event{Action: "run", Package: module + "b", Test: "TestOne"})
	r.event(&out, event{Action: "run", Package: module + "b", Test: "TestTwo"})
	require.Equal(t, "60:00  0/2  running b, 0 tests passed\n", out.String())
}

func TestWhatMustRun(t *testing.T) {
	r := reportOf(t)
	all := parts
	t.Cleanup(func() { parts = all })
	for test, want := range map[string][]string{
		"a.TestGood":  nil,
		"a.TestVM":    {"part: a.TestVM skipped: missing: x"},
		"a.TestSuite": {"part: a.TestSuite/one skipped: no reason given"},
		"a.TestSuit":  {"part: a.TestSuit did not pass"},
		"b.TestBad":   {"part: b.TestBad did not pass"},
	} {
		parts = map[string][]string{"part": {"a.TestGood", test}}
		require.Equal(t, want, r.missing([]string{"part"}), test)
	}
}

func reportOf(t *testing.T) *report {
	t.Helper()
	r := newReport()
	require.NoError(t, r.read(strings.NewReader(printed), &bytes.Buffer{}))
	return r
}

func TestWhatMayBeSkipped(t *testing.T) {
	t.Parallel()
	r := reportOf(t)
	vm := allowed{runs: "test race", tests: `a\.Test(VM|Good)`, reason: "^missing: x$"}
	suite := allowed{runs: "test", tests: `a\.TestSuite/.*`, reason: "^no reason"}
	for want, list := range map[string][]allowed{
		"": {vm, suite},
		"a.TestSuite/one may not be skipped: no reason given": {vm},
		"a.TestVM may not be skipped: missing: x": {suite,
			{runs: "race", tests: `a\.TestVM`, reason: "x"}},
		"a\\.TestGood may be skipped (x), and is not": {vm, suite,
			{runs: "test", tests: `a\.TestGood`, reason: "x"},
			{runs: "test", tests: `a\.TestGood`, reason: "x", unless: "this machine can"}},
		"b\\.TestGone may be skipped, and is no test": {vm, suite,
			{runs: "test", tests: `b\.TestBad`, reason: "x", unless: "this machine can"},
			{runs: "test", tests: `b\.TestGone`, reason: "x", unless: "this machine can"}},
	} {
		require.Equal(t, want, strings.Join(r.unlisted("test", list), "; "))
	}
}

// Each part is in a run, each run of an entry exists, and each entry names the run of its tests.
func TestTheListsAreWhole(t *testing.T) {
	t.Parallel()
	var used []string
	for _, r := range runs {
		used = append(used, r.parts...)
	}
	for part := range parts {
		require.Contains(t, used, part)
	}
	for _, a := range skips {
		for _, run := range strings.Fields(a.runs) {
			require.Contains(t, runs, run, a.tests)
		}
		require.NotEmpty(t, a.runs, a.tests)
		require.NotEmpty(t, a.instead, a.tests)
	}
}
