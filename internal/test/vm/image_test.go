package vmtest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/u-root/u-root/pkg/cpio"
	"github.com/u-root/uio/uio"
)

func listing(t *testing.T, m image) []string {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, m.write(&buf))
	require.Zero(t, buf.Len()%4, "another archive can follow")
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(buf.Bytes())))
	require.NoError(t, err)
	var out []string
	for _, r := range records {
		data, err := io.ReadAll(uio.Reader(r))
		require.NoError(t, err)
		out = append(out, fmt.Sprintf("%o %s %s", r.Mode, r.Name, data))
	}
	return out
}

func TestImageIsASortedTreeInTheMergedLayout(t *testing.T) {
	t.Parallel()
	src := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(src, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(src, "sub/run"), []byte("#!"), 0o755))
	require.NoError(t, os.Symlink("sub/run", filepath.Join(src, "link")))

	m := make(image)
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
	}, listing(t, m))

	require.ErrorContains(t, m.tree("/x", filepath.Join(src, "none")),
		"add "+filepath.Join(src, "none"))
	require.ErrorIs(t, m.file("/gone", filepath.Join(src, "gone"), 0o644), os.ErrNotExist)
	require.NoError(t, m.file("/run", filepath.Join(src, "sub/run"), 0o644))
	require.NoError(t, os.Remove(filepath.Join(src, "sub/run")))
	require.ErrorIs(t, m.write(io.Discard), os.ErrNotExist)
}

func TestTheImageIsWhatCpioReads(t *testing.T) {
	t.Parallel()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("no busybox on this machine: its cpio is the independent reader")
	}
	m := make(image)
	m.link("/bin/sh", "busybox")
	m.put(cpio.CharDev("/dev/console", 0o600, 5, 1))
	m.put(cpio.StaticFile("/init", "abc", 0o755))
	var buf bytes.Buffer
	require.NoError(t, m.write(&buf))
	cmd := exec.Command(busybox, "cpio", "-t", "-v")
	cmd.Stdin = &buf
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Regexp(t, `(?s)crw-------.*dev/console\n-rwxr-xr-x.* init\n.*usr/bin/sh -> busybox\n`,
		string(out))
}
