package vmtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// Kernel is a kernel that was booted, or can be.
type Kernel struct {
	// Name of the series, see [Releases].
	Name string `json:"name"`
	// Suite of Debian that it comes from.
	Suite string `json:"suite"`
	// Release is what uname -r says in the guest.
	Release string `json:"release"`
	// Packages it was unpacked from, as "name=version".
	Packages []string `json:"packages"`
}

// metaPackage always depends on the newest cloud kernel of a suite. The cloud
// kernels have no drivers for hardware, which makes them small.
const metaPackage = "linux-image-cloud-amd64"

// kernelPackage matches the packages that hold parts of a kernel. Up to 6.x that
// is linux-image alone; from 7.x linux-image only depends on linux-binary (the
// image), linux-modules, and linux-base (lists such as modules.builtin).
var kernelPackage = regexp.MustCompile(`^linux-(image|binary|modules|base)-[0-9].*-cloud-amd64$`)

// fetchKernel puts the newest kernel of a suite in the place of old, which may be
// zero. The caller holds the exclusive lock.
func (s *store) fetchKernel(ctx context.Context, r Release, old Kernel) (Kernel, error) {
	dir := s.kernelDir(r.Suite)
	work := dir + ".new"
	if err := os.RemoveAll(work); err != nil {
		return Kernel{}, fmt.Errorf("remove an interrupted download: %w", err)
	}
	defer os.RemoveAll(work)
	s.log.Info("looking for the newest kernel", "series", r.Name, "suite", r.Suite)
	a, err := newAPT(ctx, filepath.Join(work, "apt"), r.Suite)
	if err != nil {
		return Kernel{}, fmt.Errorf("fetch kernel %s: %w", r.Name, err)
	}
	packages, err := kernelPackages(ctx, a)
	if err != nil {
		return Kernel{}, fmt.Errorf("fetch kernel %s: %w", r.Name, err)
	}
	k := Kernel{Name: r.Name, Suite: r.Suite}
	for _, p := range packages {
		k.Packages = append(k.Packages, p.Name+"="+p.Version)
	}
	if slices.Equal(k.Packages, old.Packages) {
		return old, nil
	}
	s.log.Info("downloading", "packages", k.Packages)
	root, done := filepath.Join(work, "root"), filepath.Join(work, "kernel")
	for _, d := range []string{root, done} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return Kernel{}, fmt.Errorf("fetch kernel %s: %w", r.Name, err)
		}
	}
	if err := a.download(ctx, work, root, packages); err != nil {
		return Kernel{}, fmt.Errorf("fetch kernel %s: %w", r.Name, err)
	}
	if k.Release, err = arrangeKernel(ctx, root, done); err != nil {
		return Kernel{}, fmt.Errorf("unpack kernel %s: %w", r.Name, err)
	}
	if !r.matches(k.Release) {
		return Kernel{}, fmt.Errorf("%w %s: the suite %s now has %s", ErrUnknownKernel, r.Name,
			r.Suite, k.Release)
	}
	return k, replaceKernel(k, done, dir)
}

// kernelPackages follows the dependencies of the suite's metapackage.
func kernelPackages(ctx context.Context, a *apt) ([]debPackage, error) {
	var out []debPackage
	seen := map[string]bool{}
	todo := []string{metaPackage}
	for len(todo) > 0 {
		p, err := a.show(ctx, todo[0])
		if err != nil {
			return nil, err
		}
		todo = todo[1:]
		if p.Name != metaPackage {
			out = append(out, p)
		}
		for _, d := range p.Depends {
			if kernelPackage.MatchString(d) && !seen[d] {
				seen[d] = true
				todo = append(todo, d)
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("package %s of %s depends on no kernel image", metaPackage, a.suite)
	}
	return out, nil
}

// arrangeKernel moves what is needed out of the unpacked packages, so that old and
// new packages end in one layout, and returns the kernel's release.
func arrangeKernel(ctx context.Context, root, done string) (string, error) {
	modules, err := one(root, "lib/modules/*", "usr/lib/modules/*")
	if err != nil {
		return "", err
	}
	release := filepath.Base(modules)
	image, err := one(root, "boot/vmlinuz-*", "lib/modules/*/vmlinuz", "usr/lib/modules/*/vmlinuz")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(done, "usr/lib/modules"), 0o755); err != nil {
		return "", err
	}
	// depmod looks in /lib/modules, or in /usr/lib/modules where it was built so.
	if err := os.Symlink("usr/lib", filepath.Join(done, "lib")); err != nil {
		return "", err
	}
	for _, move := range [][2]string{
		{image, filepath.Join(done, "vmlinuz")},
		{modules, filepath.Join(done, "usr/lib/modules", release)},
	} {
		if err := os.Rename(move[0], move[1]); err != nil {
			return "", err
		}
	}
	_, err = command{Name: "depmod", Args: []string{"-b", done, release}}.output(ctx)
	return release, err
}

// one returns the only file below root that matches one of the patterns.
func one(root string, patterns ...string) (string, error) {
	var found []string
	for _, p := range patterns {
		files, err := filepath.Glob(filepath.Join(root, p))
		if err != nil {
			return "", err
		}
		found = append(found, files...)
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%d files in the packages match %q, not one", len(found), patterns)
	}
	return found[0], nil
}

// replaceKernel makes the directory done the suite's kernel.
func replaceKernel(k Kernel, done, dir string) error {
	data, err := json.MarshalIndent(k, "", "\t")
	if err == nil {
		err = os.WriteFile(filepath.Join(done, "kernel.json"), data, 0o644)
	}
	// Without its kernel.json, a kernel that is half removed counts as none.
	if err == nil {
		if err = os.Remove(filepath.Join(dir, "kernel.json")); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err == nil {
		err = os.Rename(done, dir)
	}
	if err != nil {
		return fmt.Errorf("put kernel %s into the cache: %w", k.Release, err)
	}
	return nil
}
