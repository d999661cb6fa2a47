package main

import (
	"bytes"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWrongUsageIsOneLine(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                      "what is to be done? kernlb -h lists commands and flags",
		"aply -f x":             `there is no command "aply"; did you mean apply?; kernlb -h`,
		"frobnicate":            `there is no command "frobnicate"; kernlb -h lists`,
		"apply -f x -keep-gong": `there is no flag "-keep-gong"; did you mean -keep-going?`,
		"show -frobnicate":      `there is no flag "-frobnicate"; kernlb -h lists`,
		"tune -f x": "-f is for apply, plan, watch, show, trace, explain, graph, not " +
			"for tune",
		"show -conntrack-min 1": "-conntrack-min is for tune, not for show",
		"tune -masquerade-all": "-masquerade-all is for apply, plan, watch, show, " +
			"trace, explain, graph, bench",
		"watch -f x -listen 0.0.0.0:80": "-listen: 0.0.0.0:80: others than this machine " +
			"reach it, and could read the page; if they shall, say -listen-anywhere",
		"watch -f x -listen localhost:1": `-listen: "localhost:1": want IP:PORT`,
		"watch -f x -listen 192.0.2.1":   `-listen: "192.0.2.1": want IP:PORT`,
		"apply":                          "apply needs manifests: -f FILE",
		"apply web.yaml":                 `apply does not take "web.yaml", which is no flag`,
		"explain web":                    `explain needs a service: NAMESPACE/NAME, not "web"`,
		"explain a/b c/d":                `explain does not take "c/d"`,
		"apply -f":                       "flag needs an argument: -f",
		"bench -services x":              `invalid value "x" for flag -services: parse error`,
		"-service a/b apply -f x":        "-service is for flows, show, graph, not for apply",
		"cleanup -of kube-proxy3":        `-of: "kube-proxy3": want kube-proxy`,
		"show -o json -o yaml":           `-o: "yaml": want text or json`,
		"flows -watch -service nope":     `-service: "nope": want namespace/name`,
	} {
		var out, errs bytes.Buffer
		p := &program{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
		require.Equal(t, exitInvalid, p.run(t.Context(), strings.Fields(args)), args)
		require.Contains(t, errs.String(), "kernlb: "+want, args)
		require.Equal(t, 1, strings.Count(errs.String(), "\n"), errs.String())
		require.Empty(t, out.String())
	}
}

func TestHelpNamesAllCommandsAndFlags(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-h", "apply -h", "-o json show --help"} {
		var out, errs bytes.Buffer
		p := &program{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
		require.Equal(t, exitDone, p.run(t.Context(), strings.Fields(args)))
		require.Empty(t, errs.String())
		for name := range commands {
			require.Contains(t, out.String(), "\n  "+name+" ")
		}
		require.Contains(t, out.String(), "  -keep-going\n")
	}
}

// Each pattern of flagsFor is one of flags that there are, and names commands that there are.
func TestFlagsAreForCommands(t *testing.T) {
	t.Parallel()
	fs := flag.NewFlagSet("kernlb", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	(&options{}).define(fs, &nodeFlags{})
	for pattern, takers := range flagsFor {
		name, _ := strings.CutSuffix(pattern, "*")
		found := false
		fs.VisitAll(func(f *flag.Flag) { found = found || strings.HasPrefix(f.Name, name) })
		require.True(t, found, pattern)
		for _, c := range strings.Fields(takers) {
			require.Contains(t, commands, c, pattern)
		}
	}
}
