package vmtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLibrariesThatLddNames(t *testing.T) {
	t.Parallel()
	const mnl, loader = "/lib/x86_64-linux-gnu/libmnl.so.0", "/lib64/ld-linux-x86-64.so.2"
	for line, want := range map[string]string{
		"/usr/sbin/nft:":                               "",
		"\tlinux-vdso.so.1 (0x00007ffd7a3d1000)":       "",
		"\tlibmnl.so.0 => " + mnl + " (0x00007f1de10)": mnl,
		"\t" + loader + " (0x00007f1de10b2000)":        loader,
		"\tstatically linked":                          "",
	} {
		got, err := libraryOf(line + "\n")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := libraryOf("\tlibgone.so.1 => not found\n")
	require.ErrorIs(t, err, ErrMissing)
	require.EqualError(t, err, "missing: the shared library libgone.so.1")
}

func TestToolsComeWithLinksAndLibraries(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skipf("the tools of a %s/%s machine do not run in the guest", runtime.GOOS,
			runtime.GOARCH)
	}
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	// A link to a link to the shell, as the alternatives system makes them.
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.Symlink(sh, filepath.Join(dir, "second")))
	require.NoError(t, os.Symlink("second", filepath.Join(dir, "first")))

	files, err := collectTools(t.Context(), []string{filepath.Join(dir, "first")})
	require.NoError(t, err)
	got := make(map[string]string)
	var names []string
	for _, f := range files {
		got[f.Path] = f.Target
		names = append(names, filepath.Base(f.Path))
	}
	require.Equal(t, "second", got[filepath.Join(dir, "first")])
	require.Equal(t, sh, got[filepath.Join(dir, "second")])
	real, err := filepath.EvalSymlinks(sh)
	require.NoError(t, err)
	require.Contains(t, got, real)
	all := strings.Join(names, " ")
	require.Contains(t, all, "libc.so.6")
	require.Contains(t, all, "ld-linux-x86-64.so.2")
	require.False(t, static(real))
}

func TestAToolThatTheHostLacksIsMissing(t *testing.T) {
	t.Parallel()
	_, err := findProgram("no-such-program")
	require.ErrorIs(t, err, ErrMissing)
	require.EqualError(t, err, "missing: the program no-such-program")

	err = &MissingError{What: "the program x", Package: "x-utils", Err: os.ErrNotExist}
	require.ErrorIs(t, err, os.ErrNotExist)
	require.EqualError(t, err,
		"missing: the program x (Debian package x-utils): file does not exist")
}

func TestAScriptNeedsNoLibrary(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
	require.False(t, linked(path))
	require.False(t, static(path))
	require.False(t, static(path+"-gone"))
}
