package vmtest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/vmtest/cpio"
)

func listing(t *testing.T, m *image) []string {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, m.write(&buf))
	r := cpio.NewReader(&buf)
	var out []string
	for {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		out = append(out, fmt.Sprintf("%o %s %s", h.Mode, h.Name, data))
	}
}

func TestImageIsASortedTreeInTheMergedLayout(t *testing.T) {
	t.Parallel()
	src := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(src, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(src, "sub/run"), []byte("#!"), 0o755))
	require.NoError(t, os.Symlink("sub/run", filepath.Join(src, "link")))

	var m image
	m.text("/etc/hosts", "old")
	m.text("/etc/hosts", "new")
	m.link("/sbin/modprobe", "busybox")
	require.NoError(t, m.tree("/src/testdata", src))
	require.True(t, m.has("/usr/sbin/modprobe"))
	require.False(t, m.has("/bin/sh"))
	require.Equal(t, []string{
		"40755 etc ", "100644 etc/hosts new",
		"40755 src ", "40755 src/testdata ", "120777 src/testdata/link sub/run",
		"40755 src/testdata/sub ", "100755 src/testdata/sub/run #!",
		"40755 usr ", "40755 usr/sbin ", "120777 usr/sbin/modprobe busybox",
	}, listing(t, &m))

	require.ErrorContains(t, m.tree("/x", filepath.Join(src, "none")),
		"add "+filepath.Join(src, "none"))
	m.file("/gone", filepath.Join(src, "gone"), 0o644)
	require.ErrorIs(t, m.write(io.Discard), os.ErrNotExist)
}
