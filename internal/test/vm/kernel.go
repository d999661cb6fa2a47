package vmtest

import (
	"context"
	_ "embed" // of the script
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kernel is a kernel that was booted, or can be.
type Kernel struct {
	// Name of the series, see [Releases].
	Name string
	// Suite of Debian that it comes from.
	Suite string
	// Release is the output of uname -r in the guest.
	Release string
}

// prepared is the kernel and the base image for a VM.
type prepared struct {
	kernel  Kernel
	vmlinuz string
	base    string // initramfs without programs
}

//go:embed kernel.sh
var kernelScript string

// codeMissing is the script's exit code if the machine lacks something.
const codeMissing = 3

// prepare lets the script put a kernel and a base image into the cache, unless they are there. It
// writes its script to the directory work.
func (o *Options) prepare(ctx context.Context, r Release, work string) (prepared, error) {
	cache, err := cacheDir()
	if err != nil {
		return prepared{}, err
	}
	out, err := runScript(ctx, work, o.Log, append([]string{r.Name, r.Suite, cache},
		o.Tools...)...)
	if err != nil {
		return prepared{}, fmt.Errorf("prepare kernel %s: %w", r.Name, err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 {
		return prepared{}, fmt.Errorf("prepare kernel %s: kernel.sh says %q", r.Name, out)
	}
	return prepared{Kernel{r.Name, r.Suite, lines[0]}, lines[1], lines[2]}, nil
}

// runScript runs kernel.sh and returns its standard output.
func runScript(
	ctx context.Context, work string, log *slog.Logger, args ...string,
) (string, error) {
	path := filepath.Join(work, "kernel.sh")
	if err := os.WriteFile(path, []byte(kernelScript), 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "bash", append([]string{path}, args...)...)
	said := &progress{log: log}
	cmd.Stderr = said
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == codeMissing {
		return "", fmt.Errorf("%w: %s", ErrMissing, strings.TrimPrefix(said.last, "missing: "))
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, said.last)
	}
	return string(out), err
}

// progress logs lines that are written to it, and keeps the last line.
type progress struct {
	log  *slog.Logger
	last string
}

func (p *progress) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		p.last = strings.TrimSpace(line)
		p.log.Info(p.last)
	}

	return len(b), nil
}

// cacheDir returns the directory for kernels and images. Runs share it safely.
func cacheDir() (string, error) {
	if dir := os.Getenv("KERNLB_VM_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a place for the VM cache: %w; set KERNLB_VM_CACHE", err)
	}
	return filepath.Join(user, "kernlb"), nil
}
