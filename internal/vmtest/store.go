package vmtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// store is the cache directory:
//
//	kernels/<suite>/       one kernel: kernel.json, vmlinuz, usr/lib/modules
//	kernels/<suite>.lock   held shared by a running VM, exclusive to change things
//	images/<suite>-*.cpio  base images for that kernel
//
// What is being made has ".new" at the end of its name and gets its own name
// once it is whole; leftovers of an interrupted run are removed by the next one.
type store struct {
	dir string
	log *slog.Logger
}

// openStore makes the directories. An empty dir means $KERNLB_VM_CACHE, or else
// "kernlb" in the user's cache directory.
func openStore(dir string, log *slog.Logger) (*store, error) {
	if dir == "" {
		dir = os.Getenv("KERNLB_VM_CACHE")
	}
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find a place for the VM cache: %w; set KERNLB_VM_CACHE", err)
		}
		dir = filepath.Join(user, "kernlb")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open the VM cache: %w", err)
	}
	for _, d := range []string{"kernels", "images"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("open the VM cache: %w", err)
		}
	}
	return &store{dir: dir, log: log}, nil
}

func (s *store) kernelDir(suite string) string { return filepath.Join(s.dir, "kernels", suite) }

func (s *store) lock(ctx context.Context, suite string, exclusive bool) (func(), error) {
	return lockFile(ctx, s.kernelDir(suite)+".lock", exclusive)
}

// imageSpec says what a base image has to hold.
type imageSpec struct {
	release Release
	modules []string // patterns beside defaultModules
	tools   []hostFile
	// update asks the mirror for a newer kernel even if there is one in the cache.
	update bool
}

// prepared is what a VM boots from.
type prepared struct {
	kernel  Kernel
	vmlinuz string
	base    string
}

// prepare returns a kernel and a base image, from the cache or made now. Neither
// is removed before release is called.
func (s *store) prepare(ctx context.Context, spec imageSpec) (p prepared, release func(),
	err error) {
	if spec.update {
		if err := s.change(ctx, spec, true); err != nil {
			return prepared{}, nil, err
		}
	}
	for {
		unlock, err := s.lock(ctx, spec.release.Suite, false)
		if err != nil {
			return prepared{}, nil, err
		}
		p, err := s.lookup(spec)
		if err == nil {
			return p, unlock, nil
		}
		unlock()
		if !errors.Is(err, errNotCached) {
			return prepared{}, nil, err
		}
		// Another run may change things between the two locks: look again.
		if err := s.change(ctx, spec, false); err != nil {
			return prepared{}, nil, err
		}
	}
}

// errNotCached: the thing has to be made first.
var errNotCached = errors.New("not in the cache")

// lookup finds what prepare wants. The caller holds the lock.
func (s *store) lookup(spec imageSpec) (prepared, error) {
	k, err := s.readKernel(spec.release)
	if err != nil {
		return prepared{}, err
	}
	key, err := s.imageKey(k, spec)
	if err != nil {
		return prepared{}, err
	}
	p := prepared{k, filepath.Join(s.kernelDir(k.Suite), "vmlinuz"), s.imagePath(k, key)}
	now := time.Now()
	// The time says when an image was last used: see removeOldImages.
	if err := os.Chtimes(p.base, now, now); errors.Is(err, os.ErrNotExist) {
		return prepared{}, errNotCached
	} else if err != nil {
		return prepared{}, fmt.Errorf("use a base image: %w", err)
	}
	return p, nil
}

// change makes what is missing, under the exclusive lock.
func (s *store) change(ctx context.Context, spec imageSpec, update bool) error {
	unlock, err := s.lock(ctx, spec.release.Suite, true)
	if err != nil {
		return err
	}
	defer unlock()
	k, err := s.readKernel(spec.release)
	if update || errors.Is(err, errNotCached) {
		k, err = s.fetchKernel(ctx, spec.release, k)
	}
	if err != nil {
		return err
	}
	if _, err := s.lookup(spec); !errors.Is(err, errNotCached) {
		return err
	}
	return s.buildImage(ctx, k, spec)
}

// readKernel reads the kernel of a suite; errNotCached when there is none.
func (s *store) readKernel(r Release) (Kernel, error) {
	data, err := os.ReadFile(filepath.Join(s.kernelDir(r.Suite), "kernel.json"))
	if errors.Is(err, os.ErrNotExist) {
		return Kernel{}, errNotCached
	}
	if err != nil {
		return Kernel{}, fmt.Errorf("read the cached kernel %s: %w", r.Name, err)
	}
	var k Kernel
	if err := json.Unmarshal(data, &k); err != nil {
		return Kernel{}, fmt.Errorf("read the cached kernel %s: %w", r.Name, err)
	}
	return k, nil
}
