package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// top runs another program with its arguments, and says how to install it if it is missing.
func TestTop(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	run := func(args ...string) (int, string, string) {
		var out, errs strings.Builder
		p := &program{stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
		return p.run(t.Context(), append([]string{"top"}, args...)), out.String(), errs.String()
	}
	code, _, errs := run()
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "go install -C examples/kernlb-top .")
	code, _, errs = run("-o", "json")
	require.Equal(t, exitInvalid, code, errs)
	require.NoError(t, os.WriteFile(filepath.Join(dir, topProgram),
		[]byte("#!/bin/sh\necho \"$@\"\n"), 0o700))
	code, out, errs := run("-backend", "ipvs", "-once", "-interval", "3s", "-page", "unix:/x")
	require.Equal(t, exitDone, code, errs)
	require.Equal(t, "-backend ipvs -instance kernlb -page unix:/x -interval 3s -once=true\n", out)
}
