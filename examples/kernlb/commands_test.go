package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// run runs a command line that needs no kernel.
func run(t *testing.T, line string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	p := &program{stdin: strings.NewReader(""), stdout: &o, stderr: &e}
	code = p.run(t.Context(), strings.Fields(line))
	return code, o.String(), e.String()
}

func TestFlagsStandAroundWhatACommandIsAbout(t *testing.T) {
	t.Parallel()
	var o options
	c := ok(parse(&o, strings.Fields("explain -instance x default/web -ipvs-tcp-timeout 2h "+
		"-ipvs-tcpfin-timeout 30s -ipvs-udp-timeout 20s"), &bytes.Buffer{}))(t)
	require.Equal(t, "explain", c.name)
	require.Equal(t, "x", o.instance)
	require.Equal(t, "default/web", o.explained.String())
	require.Equal(t, ipvs.Timeouts{TCP: 7200e9, TCPFin: 30e9, UDP: 20e9}, o.ipvs.Timeouts)
}

// Help goes to standard output in lines that fit. The help of a command has all of its flags, and
// no others.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"-h", "--help", "help", "-h -h", "help help", "help -h"} {
		code, out, errs := run(t, line)
		require.Equal(t, exitDone, code)
		require.Empty(t, errs)
		for _, c := range commands() {
			require.Contains(t, out, "\n  "+c.name+" ")
		}
	}

	for _, c := range commands() {
		fs := c.flagSet(&options{})
		for _, line := range []string{c.name + " -h", c.name + " --help", "help " + c.name} {
			code, out, errs := run(t, line)
			require.Equal(t, exitDone, code)
			require.Empty(t, errs)
			require.Contains(t, out, "usage: kernlb "+c.name)
			require.Contains(t, out, "\n  kernlb "+c.example+"\n")
			printed := 0
			for l := range strings.Lines(out) {
				require.LessOrEqual(t, len(l), 100, l)
				if strings.HasPrefix(l, "  -") {
					printed++
				}
			}

			fs.VisitAll(func(f *flag.Flag) {
				require.Contains(t, out, "\n  -"+f.Name)
				printed--
			})

			require.Zero(t, printed)
		}

		example := strings.Fields(c.example)
		_, err := parse(&options{}, example, &bytes.Buffer{})
		require.NoError(t, err, c.example)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"version", "-version", "--version"} {
		code, out, _ := run(t, line)
		require.Equal(t, exitDone, code)
		require.Regexp(t, `^kernlb \S+(, commit [0-9a-f]{40})?, `+
			regexp.QuoteMeta(runtime.Version())+"\n$", out)
		info, _ := debug.ReadBuildInfo()
		require.Equal(t, info.Main.Version, strings.TrimRight(strings.Fields(out)[1], ","))
	}
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

// top runs another program with its arguments, and says how to install it if it is missing.
func TestTop(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	code, _, errs := run(t, "top")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "go install -C examples/kernlb ./kernlb-top")
	code, _, errs = run(t, "top -o json")
	require.Equal(t, exitInvalid, code, errs)
	require.NoError(t, os.WriteFile(filepath.Join(dir, topProgram),
		[]byte("#!/bin/sh\necho \"$@\"\n"), 0o700))
	code, out, errs := run(t, "top -backend ipvs -once -interval 3s -page unix:/x")
	require.Equal(t, exitDone, code, errs)
	require.Equal(t, "-backend ipvs -instance kernlb -page unix:/x -interval 3s -once=true\n", out)
}

// A family that is left out has no name of a service.
func TestStatusNamesARefusedFamily(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"healthy":true,"lastUpdated":"2026-01-02T03:04:05Z","refused":[`+
			`{"family":"IPv6","problems":[{"error":"no IPv6"}]}]}`)
	}))
	t.Cleanup(s.Close)
	_, out, _ := run(t, "status -page "+s.URL)
	require.Contains(t, out, "refused: IPv6, left out\n  no IPv6\n")
}

func TestApplyNamesARefusedFamily(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &program{stdout: &out, opts: options{output: "json"}}
	sum := summary{Refused: p.refused([]dataplane.Refusal{
		{Family: servicemodel.IPv6, Err: errors.New("no IPv6")}})}
	require.NoError(t, p.summarize(sum))
	require.Contains(t, out.String(), `"refused": [
    {
      "family": "IPv6",
      "reason": "no IPv6"
    }
  ]`)
	require.ErrorIs(t, p.complete(), errIncomplete)
}

// A trace of manifests says what the backend would refuse: the kernel would never hold it.
func TestTraceNamesWhatTheBackendRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(file, []byte(serviceManifest("a", "10.96.0.1",
		"annotations: {kernlb.io/scheduler: sed}", "")), 0o600))
	const line = " -from 10.244.1.1 -to 10.96.0.1:80/tcp -page http://127.0.0.1:1 -f "
	code, out, _ := run(t, "trace -backend nftables"+line+file)
	require.Equal(t, exitDone, code)
	require.Contains(t, out, "default/a has 10.96.0.1:80, but is refused: nftables cannot express "+
		"service default/a:http: scheduler: sed")
	require.NotContains(t, out, "balanced")

	_, out, _ = run(t, "trace -backend ipvs"+line+file)
	require.Contains(t, out, "balanced")
}
