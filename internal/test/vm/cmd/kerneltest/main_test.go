package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/vm"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	c, err := parseFlags(
		strings.Fields("-kernel 5.10,sid -run TestA -timeout 90s -tools nft,ip -memory 2048 "+
			"-append ipv6.disable=1 "+
			"./ipvs ./nftables -- -test.bench=. -x"), io.Discard)
	require.NoError(t, err)
	require.Equal(t, []string{"5.10", "7.x"}, c.kernels)
	require.Equal(t, []string{"./ipvs", "./nftables"}, c.packages)
	require.Equal(t, []string{"nft", "ip"}, c.options.Tools)
	require.Equal(t, 2048, c.options.Memory)
	require.Equal(t, []string{"ipv6.disable=1"}, c.options.KernelArgs)
	require.Equal(t, []string{"-test.v", "-test.timeout=1m30s", "-test.run=TestA",
		"-test.bench=.", "-x"}, c.args())

	c, err = parseFlags([]string{"-kernel", "all", "./..."}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []string{"5.10", "6.1", "6.12", "7.x"}, c.kernels)
	require.Contains(t, c.options.Tools, "ipvsadm")
	require.Equal(t, []string{"-test.v", "-test.timeout=10m0s"}, c.args())
}

func TestBadCommandLines(t *testing.T) {
	t.Parallel()
	for want, args := range map[string]string{
		"no packages given":         "-kernel 6.1",
		"-kernel is empty":          "-kernel= ./ipvs",
		`unknown kernel "4.19"`:     "-kernel 6.1,4.19 ./ipvs",
		"missing closing ]":         "-need [ ./ipvs",
		"not defined: -nonexistent": "-nonexistent",
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			require.Equal(t, codeUsage, command(t.Context(), strings.Fields(args), io.Discard,
				&stderr))
			require.Contains(t, stderr.String(), want)
		})
	}

	t.Run("help is no error", func(t *testing.T) {
		t.Parallel()
		var stderr bytes.Buffer
		require.Equal(t, codePassed, command(t.Context(), []string{"-help"}, io.Discard, &stderr))
		require.Contains(t, stderr.String(), "usage: kerneltest")
	})
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, codePassed},
		{fmt.Errorf("x: %w", vmtest.ErrTestsFailed), codeFailed},
		{vmtest.ErrUnknownKernel, codeUsage},
		{fmt.Errorf("x: %w", vmtest.ErrMissing), codeMissing},
		{vmtest.ErrPanic, codeVM},
		{vmtest.ErrTimeout, codeVM},
		{vmtest.ErrNoVerdict, codeVM},
		{context.Canceled, codeVM},
		{errors.New("disk full"), codeVM},
	} {
		code, _ := exitCode(c.err)
		require.Equal(t, c.want, code, "%v", c.err)
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	result := vmtest.Result{
		Kernel: vmtest.Kernel{Release: "6.1.0-56"}, Boot: 2 * time.Second,
		Duration: 4 * time.Second,
		Programs: []vmtest.ProgramResult{
			{Name: "m/a", Duration: time.Second, Tests: vmtest.TestCount{
				Passed: []string{"A", "B", "C"}, Skipped: []string{"TestS"}}},
			{Name: "m/b", ExitCode: 1, Tests: vmtest.TestCount{
				Failed: []string{"TestF"}}},
		},
	}
	lines, code := summarize("6.1", result, &config{}, vmtest.ErrTestsFailed)
	require.Equal(t, codeFailed, code)
	require.Equal(t, []string{
		"ok\t6.1\tm/a\t1.0s\t3 passed, 0 failed, 1 skipped",
		"    skipped: TestS",
		"FAIL\t6.1\tm/b\t0.0s\t0 passed, 1 failed, 0 skipped",
		"    failed: TestF",
		"vm\t6.1\t6.1.0-56\tboot 2.0s, power-on to power-off 4.0s",
	}, lines)

	result.Programs = result.Programs[:1]
	_, code = summarize("6.1", result, &config{}, nil)
	require.Equal(t, codePassed, code)

	result.Programs[0].Tests = vmtest.TestCount{}
	_, code = summarize("6.1", result, &config{run: "TestTypo"}, nil)
	require.Equal(t, codeUsage, code, "nothing ran")

	lines, code = summarize("6.1", vmtest.Result{}, &config{},
		fmt.Errorf("long: %w: story", vmtest.ErrPanic))
	require.Equal(t, codeVM, code)
	require.Equal(t, []string{"FAIL\t6.1\tthe VM\tthe guest's kernel panicked"}, lines)
}

func TestWhatIsNeededMustRun(t *testing.T) {
	t.Parallel()
	count := vmtest.TestCount{Passed: []string{"TestPure", "TestKernelA"},
		Skipped: []string{"TestKernelB"}}
	for _, tt := range []struct{ need, want string }{
		{"", ""},
		{"^TestPure$", ""},
		{"^TestKernel", "TestKernelB was skipped"},
		{"^TestConformance", "no test passed that matches ^TestConformance"},
	} {
		c := &config{}
		if tt.need != "" {
			c.needed = regexp.MustCompile(tt.need)
		}
		require.Equal(t, tt.want, c.notRun(&count), tt.need)
	}

	lines, code := summarize("6.1",
		vmtest.Result{Programs: []vmtest.ProgramResult{{Name: "m/a", Tests: count}}},
		&config{needed: regexp.MustCompile("B$")}, nil)
	require.Equal(t, codeFailed, code)
	require.Contains(t, lines, "    not run: TestKernelB was skipped")
}

func TestPackagesWithoutTestsAreAnError(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	require.Equal(t, codeUsage, command(t.Context(), []string{"../guestinit"}, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "no tests in")
}
