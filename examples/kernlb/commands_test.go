package main

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/ipvs"
)

// run runs a command line that needs no kernel.
func run(t *testing.T, line string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	p := &program{stdin: strings.NewReader(""), stdout: &o, stderr: &e}
	code = p.run(t.Context(), strings.Fields(line))
	return code, o.String(), e.String()
}

func TestWrongUsageIsOneLine(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                      "what is to be done? kernlb -h lists the commands",
		"aply -f x":             `there is no command "aply"; did you mean apply?; kernlb -h`,
		"frobnicate":            `there is no command "frobnicate"; kernlb -h lists`,
		"-o json show":          "-o: flags come behind the command; kernlb -h lists",
		"apply -f x -keep-gong": `there is no flag "-keep-gong"; did you mean -keep-going?`,
		"show -frobnicate":      `there is no flag "-frobnicate"; kernlb show -h lists its flags`,
		"tune -f x": "-f is for apply, watch, plan, show, trace, explain, graph, not for tune; " +
			"kernlb tune -h lists its flags",
		"show -conntrack-min 1": "-conntrack-min is for tune, not for show",
		"tune -masquerade-all": "-masquerade-all is for apply, watch, plan, show, trace, " +
			"explain, graph, bench, not for tune",
		"watch -f x -listen 0.0.0.0:80": "-listen: 0.0.0.0:80: others than this machine " +
			"reach it, and could read the page; if they shall, say -listen-anywhere",
		"watch -f x -listen localhost:1":   `invalid value "localhost:1" for flag -listen: `,
		"watch -f x -listen 192.0.2.1":     `invalid value "192.0.2.1" for flag -listen: `,
		"apply":                            "there are no manifests: -f FILE",
		"apply -f x -changes y":            "-changes: what was planned is applied without",
		"apply web.yaml":                   `apply does not take "web.yaml", which is no flag`,
		"explain web":                      `explain needs a service: NAMESPACE/NAME, not "web"`,
		"explain a/b -object x":            "explain is about -object, or about the service a/b",
		"explain a/b c/d":                  `explain does not take "c/d"`,
		"apply -f":                         "flag needs an argument: -f",
		"bench -services x":                `invalid value "x" for flag -services: want 1 to`,
		"bench -services 0":                `invalid value "0" for flag -services: want 1 to 1048`,
		"apply -f x -service a/b":          "-service is for show, graph, flows, not for apply",
		"cleanup -of kube-prxy":            `invalid value "kube-prxy" for flag -of: want kube`,
		"show -of kube-proxy":              "-of is for cleanup, not for show",
		"cleanup -plan":                    "-plan needs -of",
		"cleanup -backend auto":            "-backend: name the backend to clean up, not auto",
		"show -o json -o yaml":             `invalid value "yaml" for flag -o: want one of`,
		"show -counters -conntrack":        "-counters or -conntrack: show prints one of them",
		"show -only-family 5":              `invalid value "5" for flag -only-family: "5": must be`,
		"show -diff":                       "-diff compares with manifests: it needs -f",
		"trace -from 10.0.0.1":             "trace needs -from IP and -to IP:PORT/PROTOCOL",
		"trace -from a -to 10.0.0.2:1/tcp": `invalid value "a" for flag -from: want an IP address`,
		"trace -from 10.0.0.1 -to 10.0.0.2:1": `invalid value "10.0.0.2:1" for flag -to: want ` +
			"IP:PORT/PROTOCOL",
		"trace -from 10.0.0.1 -to 10.0.0.2:1/icmp": `invalid value "10.0.0.2:1/icmp" for flag -to:`,
		"trace -from fd00::1 -to 10.0.0.2:1/tcp": "-from and -to: fd00::1 and 10.0.0.2:1/tcp are " +
			"of different families",
		"trace -from 10.0.0.1%eth0 -to 10.0.0.2:1/tcp -send": "-send cannot be combined with",
		"trace -from 10.0.0.1 -to 10.0.0.2:1/tcp -wait 1s":   "-wait needs -live",
		"graph -format png":              `invalid value "png" for flag -format: want one of`,
		"graph -hooks IPv5":              `invalid value "IPv5" for flag -hooks: `,
		"show -address here":             `invalid value "here" for flag -address: want an IP`,
		"show -port 70000":               `invalid value "70000" for flag -port: want 1 to 65535`,
		"show -spread -counters":         "-spread goes with none of",
		"apply -f x -connections soon":   `invalid value "soon" for flag -connections: must be`,
		"apply -f x -connections 1ms":    `invalid value "1ms" for flag -connections: must be`,
		"bench -flows -1":                `invalid value "-1" for flag -flows: want 0 to`,
		"top -interval -3s":              `invalid value "-3s" for flag -interval: want more`,
		"flows -watch -service nope":     `invalid value "nope" for flag -service: want`,
		"show -ipvs-strict-arp":          "-ipvs-strict-arp needs -ipvs-device",
		"show -ipvs-tcp-timeout -1s":     `invalid value "-1s" for flag -ipvs-tcp-timeout: want`,
		"show -ipvs-tcpfin-timeout 1.5s": `invalid value "1.5s" for flag -ipvs-tcpfin-timeout: `,
		"show -ipvs-udp-timeout 1ns":     `invalid value "1ns" for flag -ipvs-udp-timeout: want`,
	} {
		code, out, errs := run(t, args)
		require.Equal(t, exitInvalid, code, args)
		require.Contains(t, errs, "kernlb: "+want, args)
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		require.Empty(t, out)
	}
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
		require.Contains(t, out, "kernlb ")
		require.Contains(t, out, "go1.")
	}
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }

// top runs another program with its arguments, and says how to install it if it is missing.
func TestTop(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	code, _, errs := run(t, "top")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "go install -C examples/kernlb-top .")
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
