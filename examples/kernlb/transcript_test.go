package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
)

// transcript runs the commands of a file, and requires that it has their outputs. A line
// "$ COMMAND" is a command of sh, or kernlb. Below it are its output, after "| ", its standard
// error, after "! ", and its exit code, if that is not 0. "-- FILE --" begins a file for the
// commands; in it, "service NAME IP; METADATA; SPEC" stands for serviceManifest. do calls a
// function in the network namespace of the test.
func transcript(t *testing.T, path string, do func(func() error) error) {
	t.Helper()
	dir, file, said := t.TempDir(), "", false
	var all strings.Builder
	text := ok(os.ReadFile(path))(t)
	for line := range strings.Lines(string(text)) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		name, isFile := strings.CutPrefix(line, "-- ")
		switch {
		case isCommand:
			fmt.Fprint(&all, line, output(t, dir, strings.TrimSpace(command), do))
			file, said = "", true
			continue
		case isFile:
			file = filepath.Join(dir, strings.TrimSuffix(strings.TrimSpace(name), " --"))
			require.NoError(t, os.WriteFile(file, nil, 0o600))
		case file != "":
			appendTo(t, file, line)
		case said && strings.IndexAny(line, "|!=") == 0:
			continue
		}

		said = false
		all.WriteString(line)
	}

	golden.File(t, path, all.String())
}

// appendTo appends a line of a transcript to a file.
func appendTo(t *testing.T, file, line string) {
	t.Helper()
	if args, isService := strings.CutPrefix(line, "service "); isService {
		part := append(strings.Split(strings.TrimSpace(args), "; "), "", "")
		name, ip, _ := strings.Cut(part[0], " ")
		line = serviceManifest(name, ip, part[1], part[2])
	}

	f := ok(os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0))(t)
	defer f.Close()
	ok(f.WriteString(line))(t)
}

// passing are parts of an output that are different each time, or with another layout.
var passing = regexp.MustCompile(`\d+ kernel messages, \d+ bytes, [0-9.]+(ns|µs|ms|s)\b`)

// output returns what a transcript has of a command. An argument of kernlb that is the name of a
// file in dir stands for its path. Behind "<" is the standard input of kernlb, and behind "|" a
// command of sh that filters its output.
func output(t *testing.T, dir, command string, do func(func() error) error) string {
	t.Helper()
	var out, errs bytes.Buffer
	shell := func(command string, stdin io.Reader) error {
		c := exec.CommandContext(t.Context(), "sh", "-ec", command)
		c.Dir, c.Stdin, c.Stdout, c.Stderr = dir, stdin, &out, &errs
		return c.Run()
	}

	code := 0
	require.NoError(t, do(func() (err error) {
		if !strings.HasPrefix(command, "kernlb") {
			return shell(command, nil)
		}
		line, filter, _ := strings.Cut(command, " | ")
		line, stdin, _ := strings.Cut(line, " < ")
		args := strings.Fields(line)[1:]
		for i, a := range args {
			if _, err := os.Stat(filepath.Join(dir, a)); err == nil {
				args[i] = filepath.Join(dir, a)
			}
		}

		var input []byte
		if stdin != "" {
			input, err = os.ReadFile(filepath.Join(dir, stdin))
		}
		p := &program{stdin: bytes.NewReader(input), stdout: &out, stderr: &errs}
		code = p.run(context.WithoutCancel(t.Context()), args)
		if filter != "" {
			all := bytes.NewReader(bytes.Clone(out.Bytes()))
			out.Reset()
			return errors.Join(err, shell(filter, all))
		}

		return err
	}), "%s: %s", command, &errs)

	said := prefixed("| ", out.String()) + prefixed("! ", errs.String())
	if code != 0 {
		said += fmt.Sprintf("= exit %d\n", code)
	}
	return passing.ReplaceAllString(strings.ReplaceAll(said, dir+"/", ""), "…")
}

// prefixed returns the lines of a text after a prefix.
func prefixed(prefix, text string) (all string) {
	for line := range strings.Lines(text) {
		all += strings.TrimRight(prefix+line, " \n") + "\n"
	}
	return all
}

// A wrong command line is told in one line, which says what would be right.
func TestWrongUsageIsOneLine(t *testing.T) {
	t.Parallel()
	transcript(t, "testdata/usage.txt", func(do func() error) error { return do() })
}

// serviceManifest returns a service with one endpoint, and further metadata and spec.
func serviceManifest(name, ip, metadata, spec string) string {
	return strings.NewReplacer("NAME", name, "ADDRESS", ip, "METADATA", metadata, "SPEC", spec).
		Replace(`
---
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: default, METADATA}
spec: {clusterIP: ADDRESS, ports: [{name: http, port: 80, protocol: TCP}], SPEC}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: NAME, namespace: default, labels: {kubernetes.io/service-name: NAME}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.2], conditions: {ready: true}}]
`)
}
