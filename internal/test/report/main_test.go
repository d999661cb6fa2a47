package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// run is what go test -json prints of a run with good, bad and skipped tests, of a package
// that does not build, and of one that takes too long.
var run = strings.ReplaceAll(`{"Action":"run","Package":"MODULE/a","Test":"TestGood"}
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
	require.NoError(t, r.read(strings.NewReader(run), &out))
	r.print(&out, []string{"vm: x"})
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
2 passed, 1 failed, 2 skipped, in 0s
`, out.String())
}

// While tests run and no package ends, a line says which run.
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
	t.Parallel()
	r := newReport()
	require.NoError(t, r.read(strings.NewReader(run), &bytes.Buffer{}))
	for arg, want := range map[string][]string{
		"x=a.TestGood":            nil,
		"vm=a.TestGood a.TestVM":  {"vm: a TestVM skipped: missing: x"},
		"x=a.TestSuite":           {"x: a TestSuite/one skipped: no reason given"},
		"x=a.TestSuit":            {"x: a TestSuit did not pass"},
		"x=b.TestBad c.TestThere": {"x: b TestBad did not pass", "x: c TestThere did not pass"},
	} {
		q, err := requirements(arg)
		require.NoError(t, err)
		require.Equal(t, want, r.missing(q), arg)
	}
	for _, bad := range []string{"", "x", "x=", "x=a"} {
		_, err := requirements(bad)
		require.Error(t, err, bad)
	}
}
