package main

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
)

// The test runs the commands of the build file in the root of the repository, as the build does.
// The resulting program starts in an empty root directory, as in its image.
func TestTheContainerfileBuildsAProgramThatStandsAlone(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not with -short")
	}
	netnstest.Require(t) // root, for chroot
	text, err := os.ReadFile("Containerfile")
	require.NoError(t, err)
	_, command, found := strings.Cut(strings.ReplaceAll(string(text), "\\\n", ""), "\nRUN ")
	require.True(t, found)
	command, rest, _ := strings.Cut(command, "\n")
	require.Contains(t, command, "-o /kubeproxy ")
	require.Contains(t, rest, "FROM scratch\nCOPY --from=build /kubeproxy /kubeproxy\n"+
		"ENTRYPOINT [\"/kubeproxy\"]")

	image := t.TempDir()
	program := filepath.Join(image, "kubeproxy")
	build := exec.Command("sh", "-c", strings.Replace(command, "-o /kubeproxy ", "-o "+program+" ",
		1))
	build.Dir = "../.."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	binary, err := elf.Open(program)
	require.NoError(t, err)
	defer binary.Close()
	for _, p := range binary.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "it needs libraries")
	}
	inside := exec.Command("/kubeproxy", "--proxy-mode=nftables", "--write-config-to=/config",
		"--hostname-override=node1")
	inside.SysProcAttr = &syscall.SysProcAttr{Chroot: image}
	inside.Dir = "/"
	out, err = inside.CombinedOutput()
	require.NoError(t, err, "%s", out)
	written, err := os.ReadFile(filepath.Join(image, "config"))
	require.NoError(t, err)
	require.Contains(t, string(written), "mode: nftables")
}
