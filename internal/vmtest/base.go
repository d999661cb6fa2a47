package vmtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/u-root/u-root/pkg/cpio"
)

// imageFormat changes whenever the code below puts other things into an image.
const imageFormat = 2

// imageAge is how long a base image is kept after its last use.
const imageAge = 7 * 24 * time.Hour

// guestText are the small files every guest has.
var guestText = map[string]string{
	"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n" +
		"nobody:x:65534:65534:nobody:/:/bin/false\n",
	"/etc/group": "root:x:0:\nnogroup:x:65534:\n",
	"/etc/hosts": "127.0.0.1 localhost vmtest\n::1 localhost\n",
	"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n" +
		"protocols: files\nservices: files\n",
}

// guestDirs are the directories every guest has, beside those of its files.
var guestDirs = []string{"/dev", "/mnt", "/proc", "/root", "/run", "/sys", "/tmp", "/usr/bin",
	"/usr/sbin", "/usr/lib64", "/var/lib"}

// imagePath is where the base image with that key is, or will be.
func (s *store) imagePath(k Kernel, key string) string {
	return filepath.Join(s.dir, "images", k.Suite+"-"+key+".cpio")
}

// imageKey names a base image by all it is made of; errNotCached when part of that
// is not there yet.
func (s *store) imageKey(k Kernel, spec imageSpec) (string, error) {
	busybox, err := s.findBusybox(k.Suite)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(busybox)
	if err != nil {
		return "", fmt.Errorf("name the base image: %w", err)
	}
	h := sha256.New()
	fmt.Fprintln(h, imageFormat, k.Release, k.Packages, modulePatterns(spec))
	for _, f := range append(slices.Clone(spec.tools), hostFile{Path: busybox, Info: info}) {
		fmt.Fprintln(h, f.Path, f.Target, f.Info.Size(), f.Info.ModTime().UnixNano())
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

func modulePatterns(spec imageSpec) []string {
	return slices.Concat(defaultModules, spec.modules)
}

// findBusybox returns a static busybox: the machine's, or the one that
// fetchBusybox put beside the kernel; else errNotCached.
func (s *store) findBusybox(suite string) (string, error) {
	if p, err := exec.LookPath("busybox"); err == nil && static(p) {
		return p, nil
	}
	cached := filepath.Join(s.kernelDir(suite), "busybox")
	if _, err := os.Stat(cached); err != nil {
		return "", errNotCached
	}
	return cached, nil
}

// fetchBusybox gets busybox-static the way kernels are got.
func (s *store) fetchBusybox(ctx context.Context, suite string) error {
	s.log.Info("downloading busybox-static: the machine has no static busybox", "suite", suite)
	work := s.kernelDir(suite) + ".new"
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("remove an interrupted download: %w", err)
	}
	defer os.RemoveAll(work)
	a, err := newAPT(ctx, filepath.Join(work, "apt"), suite)
	if err != nil {
		return fmt.Errorf("fetch busybox: %w", err)
	}
	p, err := a.show(ctx, "busybox-static")
	if err != nil {
		return fmt.Errorf("fetch busybox: %w", err)
	}
	if err := a.download(ctx, work, work, []debPackage{p}); err != nil {
		return fmt.Errorf("fetch busybox: %w", err)
	}
	found, err := one(work, "bin/busybox", "usr/bin/busybox")
	if err == nil {
		err = os.Rename(found, filepath.Join(s.kernelDir(suite), "busybox"))
	}
	if err != nil {
		return fmt.Errorf("unpack busybox: %w", err)
	}
	return nil
}

// buildImage makes the base image. The caller holds the exclusive lock.
func (s *store) buildImage(ctx context.Context, k Kernel, spec imageSpec) error {
	if _, err := s.findBusybox(k.Suite); errors.Is(err, errNotCached) {
		if err := s.fetchBusybox(ctx, k.Suite); err != nil {
			return err
		}
	}
	key, err := s.imageKey(k, spec)
	if err != nil {
		return err
	}
	s.log.Info("building the base image", "kernel", k.Release)
	work := filepath.Join(s.dir, "images", k.Suite+".new")
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("remove an interrupted image: %w", err)
	}
	defer os.RemoveAll(work)
	m := make(image)
	if err := s.addModules(ctx, m, k, modulePatterns(spec), work); err != nil {
		return fmt.Errorf("select modules of %s: %w", k.Release, err)
	}
	for _, f := range spec.tools {
		if f.Target != "" {
			m.link(f.Path, f.Target)
		} else if err := m.file(f.Path, f.Path, f.Info.Mode().Perm()); err != nil {
			return err
		}
	}
	if err := s.addUserland(ctx, m, k.Suite); err != nil {
		return err
	}
	whole := filepath.Join(work, "base.cpio")
	if err := writeImage(m, whole); err != nil {
		return err
	}
	if err := os.Rename(whole, s.imagePath(k, key)); err != nil {
		return fmt.Errorf("put the base image into the cache: %w", err)
	}
	return s.removeOldImages(k.Suite)
}

func writeImage(m image, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("write the base image: %w", err)
	}
	if err := errors.Join(m.write(f), f.Close()); err != nil {
		return fmt.Errorf("write the base image: %w", err)
	}
	return nil
}

// removeOldImages drops the images of a suite that nobody has used for a week.
func (s *store) removeOldImages(suite string) error {
	files, err := filepath.Glob(filepath.Join(s.dir, "images", suite+"-*.cpio"))
	if err != nil {
		return fmt.Errorf("list base images: %w", err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && time.Since(info.ModTime()) > imageAge {
			if err := os.Remove(f); err != nil {
				return fmt.Errorf("remove an old base image: %w", err)
			}
		}
	}
	return nil
}

// addUserland adds busybox with a link for each of its applets that no tool of the
// host replaces, and the files a program may look for.
func (s *store) addUserland(ctx context.Context, m image, suite string) error {
	busybox, err := s.findBusybox(suite)
	if err != nil {
		return err
	}
	list, err := command{Name: busybox, Args: []string{"--list-full"}}.output(ctx)
	if err != nil {
		return fmt.Errorf("list the applets of busybox: %w", err)
	}
	taken := make(map[string]bool)
	for name := range m {
		if d := path.Dir(name); strings.HasSuffix(d, "/bin") || strings.HasSuffix(d, "/sbin") {
			taken[path.Base(name)] = true
		}
	}
	if err := m.file("/usr/bin/busybox", busybox, 0o755); err != nil {
		return err
	}
	for _, applet := range strings.Fields(list) {
		if !taken[path.Base(applet)] && path.Base(applet) != "busybox" {
			m.link("/"+applet, "/usr/bin/busybox")
		}
	}
	for _, d := range guestDirs {
		m.dir(d)
	}
	for name, text := range guestText {
		m.text(name, text)
	}
	for _, d := range mergedDirs {
		m[d] = cpio.Symlink(d, "usr/"+d)
	}
	m.link("/var/run", "/run")
	// The kernel gives init this device as its output.
	m.put(cpio.CharDev("/dev/console", 0o600, 5, 1))
	return nil
}
