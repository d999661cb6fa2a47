package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/test/vm"
)

// Exit codes, see the command's documentation.
const (
	codePassed = iota
	codeFailed
	codeUsage
	codeVM
	codeMissing
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command is main without the process.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return codePassed
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return codeUsage
	}

	out, err := os.MkdirTemp("", "kernlb-tests-")
	if err != nil {
		fmt.Fprintln(stderr, "kerneltest:", err)
		return codeMissing
	}

	defer os.RemoveAll(out)
	programs, err := build(ctx, c, out)
	if err != nil {
		fmt.Fprintln(stderr, "kerneltest:", err)
		if errors.Is(err, vmtest.ErrMissing) {
			return codeMissing
		}
		return codeUsage
	}

	c.options.Programs = programs
	c.options.Log = slog.New(slog.NewTextHandler(stderr, nil))
	var output bytes.Buffer
	c.options.Output = stdout
	if c.quiet {
		c.options.Output = &output
	}

	// An interrupted build or boot costs a minute at most; tests have their limit.
	tests := time.Duration(len(programs)) * (c.timeout + 30*time.Second)
	c.options.Timeout = vmtest.DefaultBootTimeout + tests

	code := codePassed
	var summary []string
	for _, k := range c.kernels {
		fmt.Fprintf(c.options.Output, "=== kernel %s\n", k)
		c.options.Kernel = k
		result, err := vmtest.Run(ctx, c.options)
		if err != nil {
			fmt.Fprintf(stderr, "kerneltest: kernel %s: %v\n", k, err)
		}
		lines, kernelCode := summarize(k, result, &c, err)
		summary = append(summary, lines...)
		code = max(code, kernelCode)
	}

	if code != codePassed {
		_, _ = output.WriteTo(stdout)
	}
	fmt.Fprintln(stdout)
	for _, line := range summary {
		fmt.Fprintln(stdout, line)
	}
	return code
}

func build(ctx context.Context, c config, out string) ([]vmtest.Program, error) {
	programs, err := vmtest.Build(ctx, vmtest.BuildOptions{Packages: c.packages, Out: out})
	if err == nil && len(programs) == 0 {
		err = fmt.Errorf("no tests in %q", c.packages)
	}
	for i := range programs {
		programs[i].Args = c.args()
		for _, v := range os.Environ() {
			if strings.HasPrefix(v, "KERNLB_TEST_") {
				programs[i].Env = append(programs[i].Env, v)
			}
		}

		maps.Copy(programs[i].Files, c.files)
	}

	return programs, err
}

// summarize judges one kernel.
func summarize(kernel string, r vmtest.Result, c *config, err error) ([]string, int) {
	code, reason := exitCode(err)
	var lines []string
	ran := 0
	for _, p := range r.Programs {
		ran += len(p.Tests.Passed) + len(p.Tests.Failed) + len(p.Tests.Skipped)
		verdict := "ok"
		notRun := c.notRun(&p.Tests)
		if p.ExitCode != 0 || notRun != "" {
			verdict, code = "FAIL", max(code, codeFailed)
		}
		text := fmt.Sprintf("%.1fs\t%d passed, %d failed, %d skipped",
			p.Duration.Seconds(), len(p.Tests.Passed), len(p.Tests.Failed), len(p.Tests.Skipped))
		lines = append(lines, summaryLine(verdict, kernel, p.Name, text))
		if notRun != "" {
			lines = append(lines, "    not run: "+notRun)
		}
		for _, name := range p.Tests.Failed {
			lines = append(lines, "    failed: "+name)
		}
		for _, name := range p.Tests.Skipped {
			lines = append(lines, "    skipped: "+name)
		}
	}

	if code < codeUsage && ran == 0 && c.run != "" && len(c.testArgs) == 0 {
		code, reason = codeUsage, "no test has such a name: "+c.run
	}
	switch {
	case code >= codeUsage:
		lines = append(lines, summaryLine("FAIL", kernel, "the VM", reason))
	default:
		lines = append(lines, summaryLine("vm", kernel, r.Kernel.Release,
			fmt.Sprintf("boot %.1fs, power-on to power-off %.1fs", r.Boot.Seconds(),
				r.Duration.Seconds())))
	}

	return lines, code
}

// notRun names the needed tests of a package that did not run, or returns "".
func (c *config) notRun(t *vmtest.TestCount) string {
	if c.needed == nil {
		return ""
	}
	if i := slices.IndexFunc(t.Skipped, c.needed.MatchString); i >= 0 {
		return t.Skipped[i] + " was skipped"
	}
	if !slices.ContainsFunc(t.Passed, c.needed.MatchString) {
		return "no test passed that matches " + c.needed.String()
	}
	return ""
}

func summaryLine(verdict, kernel, what, text string) string {
	return fmt.Sprintf("%s\t%s\t%s\t%s", verdict, kernel, what, text)
}

// codes are the exit codes of errors.
var codes = []struct {
	err  error
	code int
}{
	{vmtest.ErrTestsFailed, codeFailed}, {vmtest.ErrUnknownKernel, codeUsage},
	{vmtest.ErrMissing, codeMissing}, {vmtest.ErrPanic, codeVM}, {vmtest.ErrTimeout, codeVM},
	{vmtest.ErrNoVerdict, codeVM}, {context.Canceled, codeVM},
}

// exitCode returns the exit code of an error, and a short description, because the error was
// already printed in full.
func exitCode(err error) (code int, reason string) {
	if err == nil {
		return codePassed, ""
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code, c.err.Error()
		}
	}

	return codeVM, err.Error()
}
