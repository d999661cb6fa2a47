package vmtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/u-root/u-root/pkg/cpio"
)

// mirror is a fake archive: an apt-get and an apt-cache that serve packages made
// by the test and write down what they were asked.
type mirror struct{ dir string }

// newMirror puts the fakes into PATH, so its tests cannot be parallel.
func newMirror(t *testing.T) *mirror {
	t.Helper()
	for _, p := range []string{"dpkg-deb", "depmod", "busybox"} {
		if _, err := findProgram(p); err != nil {
			t.Skip(err)
		}
	}
	m := &mirror{dir: t.TempDir()}
	for name, script := range map[string]string{
		"apt-config": "exit 0",
		"apt-cache": `cat "` + m.dir +
			`/$3.control" 2>/dev/null || { echo "E: No packages found" >&2; exit 100; }`,
		"apt-get": `echo "$@" >> "` + m.dir + `/asked"
			[ "$1" = update ] && exit 0
			shift
			for p in "$@"; do cp "` + m.dir + `/${p%%=*}.deb" . || exit 100; done`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(m.dir, name),
			[]byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	t.Setenv("PATH", m.dir+":"+os.Getenv("PATH"))
	// Whatever the machine's own sources are.
	for _, r := range Releases() {
		text := "Types: deb\nURIs: file:/nowhere\nSuites: " + r.Suite + "\nComponents: main\n"
		require.NoError(t, os.WriteFile(filepath.Join(m.dir, r.Suite+".sources"), []byte(text),
			0o644))
	}
	t.Setenv("KERNLB_VM_SOURCES", m.dir)
	return m
}

// add offers a package with the given files, each holding its own name.
func (m *mirror) add(t *testing.T, name, version, depends string, files ...string) {
	t.Helper()
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: all\n", name, version) +
		"Maintainer: nobody <n@example.com>\nDescription: test\n"
	if depends != "" {
		control += "Depends: " + depends + "\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, name+".control"), []byte(control), 0o644))
	root := t.TempDir()
	for _, f := range append(files, "DEBIAN/control") {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(f)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, f), []byte(f), 0o644))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "DEBIAN/control"), []byte(control), 0o644))
	out, err := exec.Command("dpkg-deb", "--root-owner-group", "-b", root,
		filepath.Join(m.dir, name+".deb")).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// addOld offers a kernel as up to 6.x: one package.
func (m *mirror) addOld(t *testing.T, release, version string) {
	t.Helper()
	m.add(t, metaPackage, version, "linux-image-"+release+" (= "+version+")")
	m.add(t, "linux-image-"+release, version,
		"kmod, linux-base (>= 4.3~), initramfs-tools | linux-initramfs-tool",
		append(moduleLists("lib/modules/"+release), "boot/vmlinuz-"+release,
			"boot/System.map-"+release)...)
}

func moduleLists(dir string) []string {
	return []string{dir + "/modules.builtin", dir + "/modules.builtin.modinfo",
		dir + "/modules.order"}
}

// asked returns the requests to apt-get since the last call, without versions.
func (m *mirror) asked(t *testing.T) []string {
	t.Helper()
	file := filepath.Join(m.dir, "asked")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	require.NoError(t, os.Remove(file))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func newStore(t *testing.T) *store {
	t.Helper()
	s, err := openStore(t.TempDir(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return s
}

func spec(t *testing.T, kernel string) imageSpec {
	t.Helper()
	r, err := FindRelease(kernel)
	require.NoError(t, err)
	return imageSpec{release: r}
}

func prepare(t *testing.T, s *store, sp imageSpec) prepared {
	t.Helper()
	p, release, err := s.prepare(t.Context(), sp)
	require.NoError(t, err)
	release()
	return p
}

func TestAKernelIsFetchedOnceAndUpdatedOnRequest(t *testing.T) {
	m, s := newMirror(t), newStore(t)
	m.addOld(t, "6.1.0-1-cloud-amd64", "6.1.9-1")
	// An interrupted run left this behind.
	require.NoError(t, os.MkdirAll(filepath.Join(s.kernelDir("bookworm")+".new", "kernel"), 0o755))

	first := prepare(t, s, spec(t, "6.1"))
	require.Equal(t, Kernel{
		Name: "6.1", Suite: "bookworm", Release: "6.1.0-1-cloud-amd64",
		Packages: []string{"linux-image-6.1.0-1-cloud-amd64=6.1.9-1"},
	}, first.kernel)
	require.Equal(t, []string{"update", "download linux-image-6.1.0-1-cloud-amd64=6.1.9-1"},
		m.asked(t))
	image, err := os.ReadFile(first.vmlinuz)
	require.NoError(t, err)
	require.Equal(t, "boot/vmlinuz-6.1.0-1-cloud-amd64", string(image))
	require.NoDirExists(t, s.kernelDir("bookworm")+".new")

	require.Equal(t, first, prepare(t, s, spec(t, "6.1")))
	require.Empty(t, m.asked(t), "the cache has it all")

	update := spec(t, "6.1")
	update.update = true
	require.Equal(t, first, prepare(t, s, update))
	require.Equal(t, []string{"update"}, m.asked(t), "nothing newer, nothing downloaded")

	m.addOld(t, "6.1.0-2-cloud-amd64", "6.1.12-1")
	require.Equal(t, first, prepare(t, s, spec(t, "6.1")))
	second := prepare(t, s, update)
	require.Equal(t, "6.1.0-2-cloud-amd64", second.kernel.Release)
	require.NotEqual(t, first.base, second.base)
	require.FileExists(t, first.base, "its last use is not long ago")
}

func TestAKernelInSeveralPackages(t *testing.T) {
	m, s := newMirror(t), newStore(t)
	const release, version = "7.2.13+deb14-cloud-amd64", "7.2.13-1"
	m.add(t, metaPackage, version,
		"linux-base-cloud-amd64 (= 7.2.13-1), linux-image-"+release+" (= 7.2.13-1)")
	m.add(t, "linux-image-"+release, version,
		"linux-base-"+release+", linux-binary-"+release+", linux-modules-"+release)
	m.add(t, "linux-base-"+release, version, "", moduleLists("usr/lib/modules/"+release)...)
	m.add(t, "linux-binary-"+release, version, "linux-base-"+release,
		"usr/lib/modules/"+release+"/vmlinuz")
	m.add(t, "linux-modules-"+release, version, "kmod, linux-base-"+release)

	p := prepare(t, s, spec(t, "7.x"))
	require.Equal(t, release, p.kernel.Release)
	require.Len(t, p.kernel.Packages, 4)
	require.FileExists(t, p.vmlinuz)

	// The image has the userland, the module lists, and the device for init.
	f, err := os.Open(p.base)
	require.NoError(t, err)
	defer f.Close()
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(f))
	require.NoError(t, err)
	got := make(map[string]uint64)
	for _, r := range records {
		got[r.Name] = r.Mode
	}
	require.Equal(t, uint64(cpio.S_IFCHR|0o600), got["dev/console"])
	require.Equal(t, uint64(cpio.S_IFLNK|0o777), got["sbin"])
	require.Equal(t, uint64(cpio.S_IFLNK|0o777), got["usr/sbin/modprobe"])
	require.Equal(t, uint64(cpio.S_IFREG|0o755), got["usr/bin/busybox"])
	require.Contains(t, got, "usr/lib/modules/"+release+"/modules.dep")
}

func TestAFailedFetchLeavesNothing(t *testing.T) {
	m, s := newMirror(t), newStore(t)
	check := func(want error, text string) {
		t.Helper()
		_, _, err := s.prepare(t.Context(), spec(t, "6.1"))
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, text)
		require.NoDirExists(t, s.kernelDir("bookworm"))
		require.NoDirExists(t, s.kernelDir("bookworm")+".new")
	}
	check(ErrMissing, "the package linux-image-cloud-amd64 of Debian bookworm: no network, or")
	m.addOld(t, "6.1.0-1-cloud-amd64", "6.1.9-1")
	require.NoError(t, os.Remove(filepath.Join(m.dir, "linux-image-6.1.0-1-cloud-amd64.deb")))
	check(ErrMissing, "a download of linux-image-6.1.0-1-cloud-amd64=6.1.9-1 from Debian bookworm")
	m.addOld(t, "6.6.0-1-cloud-amd64", "6.6.1-1")
	check(ErrUnknownKernel, "the suite bookworm now has 6.6.0-1-cloud-amd64")
}

func TestRunsShareTheCache(t *testing.T) {
	m := newMirror(t)
	dir := t.TempDir()
	m.addOld(t, "6.1.0-1-cloud-amd64", "6.1.9-1")
	var group sync.WaitGroup
	got, sp := make([]prepared, 4), spec(t, "6.1")
	for i := range got {
		group.Go(func() {
			s, err := openStore(dir, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Error(err)
				return
			}
			p, release, err := s.prepare(t.Context(), sp)
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			got[i] = p
		})
	}
	group.Wait()
	for _, p := range got {
		require.Equal(t, got[0], p)
	}
	require.Len(t, m.asked(t), 2, "one of them did the work")
}

func TestLocks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	one, err := lockFile(t.Context(), path, false)
	require.NoError(t, err)
	two, err := lockFile(t.Context(), path, false)
	require.NoError(t, err, "many readers")
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = lockFile(short, path, true)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "wait for another run")
	one()
	two()
	writer, err := lockFile(t.Context(), path, true)
	require.NoError(t, err)
	writer()
}

func TestAptConfigLeavesTheMachineAlone(t *testing.T) {
	t.Parallel()
	got := aptConfig(`APT "";
APT::Architecture "arm64";
APT::Update::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb || true";
Acquire::http::Proxy "http://proxy.example:3128";
Dir "/";
Dir::State::lists "lists/";
DPkg::Post-Invoke:: "rm -f /x";
broken
`, "/cache/apt")
	require.Contains(t, got, "Acquire::http::Proxy \"http://proxy.example:3128\";\n")
	require.Contains(t, got, "Dir::State::Lists \"/cache/apt/lists/\";\n")
	for _, gone := range []string{"Post-Invoke", "arm64", "lists/\";\nDPkg", "Dir \"/\"",
		"broken"} {
		require.NotContains(t, got, gone)
	}
	require.Equal(t, []string{"a", "b", "libc6"},
		dependencies("a (= 1), b | c,  libc6:amd64 (>= 2) , "))
	require.Empty(t, dependencies(""))
}
