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

// containerfile returns the build file, whose continued lines are joined.
func containerfile(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("not with -short")
	}
	netnstest.Require(t) // root, for chroot
	text := ok(os.ReadFile("Containerfile"))(t)
	return strings.ReplaceAll(string(text), "\\\n", "")
}

// output runs a program and returns what it prints on standard output.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s%s", out, errs.String())
	return strings.TrimSpace(string(out))
}

// standsAlone starts the program of an image, in the image as its root directory.
func standsAlone(t *testing.T, image string) {
	t.Helper()
	binary := ok(elf.Open(filepath.Join(image, "kubeproxy")))(t)
	defer binary.Close()
	for _, p := range binary.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "it needs libraries")
	}
	inside := exec.Command("/kubeproxy", "--proxy-mode=nftables", "--write-config-to=/config",
		"--hostname-override=node1")
	inside.SysProcAttr = &syscall.SysProcAttr{Chroot: image}
	inside.Dir = "/"
	output(t, inside)
	written := ok(os.ReadFile(filepath.Join(image, "config")))(t)
	require.Contains(t, string(written), "mode: nftables")
}

// The test runs the commands of the build file in the root of the repository, as the build does.
func TestTheContainerfileBuildsAProgramThatStandsAlone(t *testing.T) {
	t.Parallel()
	_, command, found := strings.Cut(containerfile(t), "\nRUN ")
	require.True(t, found)
	command, rest, _ := strings.Cut(command, "\n")
	require.Contains(t, command, "-o /kubeproxy ")
	require.Contains(t, rest, "FROM scratch\nCOPY --from=build /kubeproxy /kubeproxy\n"+
		"ENTRYPOINT [\"/kubeproxy\"]")

	image := t.TempDir()
	build := exec.Command("sh", "-c", strings.Replace(command, "-o /kubeproxy ", "-o "+
		filepath.Join(image, "kubeproxy")+" ", 1))
	build.Dir = "../.."
	output(t, build)
	standsAlone(t, image)
}

// buildah builds the image. Instead of the image with Go, it mounts directories of this machine, so
// that nothing is downloaded.
func TestTheImage(t *testing.T) {
	t.Parallel()
	from, _, _ := strings.Cut(containerfile(t)[strings.Index(containerfile(t), "FROM ")+5:], " ")
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("missing: buildah, which builds images")
	}
	storage := t.TempDir()
	buildah := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("buildah", append([]string{"--root", filepath.Join(storage, "root"),
			"--runroot", filepath.Join(storage, "run"), "--storage-driver", "vfs"}, args...)...)
		cmd.Dir = "../.."
		return output(t, cmd)
	}

	if out, err := exec.Command("buildah", "--root", filepath.Join(storage, "probe"),
		"--storage-driver", "vfs", "mount").CombinedOutput(); err != nil {
		t.Skipf("buildah cannot mount here: %v: %s", err, out)
	}

	golang := buildah("from", "scratch")
	config, args := []string{"config"}, []string{"bud", "--isolation", "chroot", "--pull-never",
		"--tag", "kernlb-kubeproxy", "--file", "examples/kubeproxy/Containerfile"}
	for _, name := range []string{"PATH", "HOME", "GOPROXY", "GOFLAGS"} {
		config = append(config, "--env", name+"="+os.Getenv(name))
	}
	mounts := []string{"/bin", "/lib", "/lib64", "/usr", "/tmp", os.Getenv("HOME")}
	for _, dir := range mounts {
		if _, err := os.Stat(dir); err == nil {
			args = append(args, "--volume", dir+":"+dir)
		}
	}

	buildah(append(config, golang)...)
	buildah("commit", golang, from)
	buildah(append(args, ".")...)

	require.Equal(t, "[/kubeproxy]", buildah("inspect", "--type", "image", "--format",
		"{{.OCIv1.Config.Entrypoint}}", "kernlb-kubeproxy"))
	root := buildah("mount", buildah("from", "kernlb-kubeproxy"))
	files := ok(os.ReadDir(root))(t)
	require.Len(t, files, 1)
	standsAlone(t, root)
}
