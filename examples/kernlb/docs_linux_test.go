package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

var shellBlock = regexp.MustCompile("(?s)\n```sh\n(.*?)```\n")

// untried matches commands that other tests run: top is another program, diagnose needs a client,
// status needs a program that runs, and for trace -live no packet would come.
var untried = regexp.MustCompile("^(top|status)$|^(top|diagnose) | -live")

// commandLines returns the command lines of kernlb in a document, in their order.
func commandLines(t *testing.T, document string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line, _, _ = strings.Cut(line, "#")
			if args, ok := strings.CutPrefix(strings.TrimSpace(line), "kernlb "); ok {
				lines = append(lines, args)
			}
		}
	}

	return lines
}

// TestCommandsInTheDocumentsWork runs every command line of each document, one after the other.
// Each document has a namespace of its own, with manifests of the names in it.
func TestCommandsInTheDocumentsWork(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	if _, err := os.Stat("../../docs"); err != nil {
		t.Skip("the documents are not beside the test: needs no virtual machine")
	}
	documents := ok(filepath.Glob("../../docs/*.md"))(t)
	found := 0
	for _, document := range append(documents, "../../README.md") {
		lines := commandLines(t, document)
		found += len(lines)
		if len(lines) == 0 {
			continue
		}
		t.Run(filepath.Base(document), func(t *testing.T) {
			t.Parallel()
			ns, dir := nstest.New(t), t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "services.yaml"),
				[]byte(webManifest), 0o600))
			for _, line := range lines {
				requireWorks(t, ns, dir, line)
			}
		})
	}

	require.NotZero(t, found)
}

// requireWorks runs a command line. It stops a command that runs until it is stopped.
func requireWorks(t *testing.T, ns *netnstest.NS, dir, line string) {
	t.Helper()
	if untried.MatchString(line) {
		return
	}
	command, file, _ := strings.Cut(strings.NewReplacer("services.yaml", dir+"/services.yaml",
		"plan.json", dir+"/plan.json", "/etc/kernlb", dir).Replace(line), " > ")
	args := strings.Fields(command)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if args[0] == "watch" || strings.HasSuffix(line, " -watch") {
		time.AfterFunc(5*time.Second, stop) // a busy machine needs some of it to start
	}
	var out, errs bytes.Buffer
	require.NoError(t, ns.Do(func() error {
		p := &program{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
		require.Equal(t, exitDone, p.run(ctx, args), "kernlb %s: %s", line, &errs)
		return nil
	}))

	if file != "" {
		require.NoError(t, os.WriteFile(strings.TrimSpace(file), out.Bytes(), 0o600))
	}
}
