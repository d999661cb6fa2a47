package vmtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/test/vm/guest"
)

// Defaults of [Options].
const (
	DefaultMemory      = 2048
	DefaultBootTimeout = 3 * time.Minute
	DefaultTimeout     = 15 * time.Minute
)

// An initramfs may take one part in initrdShare of the memory. While it is unpacked, it is in
// memory twice, and programs need the rest.
const initrdShare = 3

// Options are the programs to run, and the machine for them.
type Options struct {
	// Kernel is a series or suite name of [Releases].
	Kernel string
	// Programs run one after another in one VM; see [Build] for Go tests.
	Programs []Program
	// Init is the program guestinit (its package is cmd/guestinit) as a static executable for
	// linux/amd64; "" means the file guestinit in the directory of the running program.
	Init string
	// Tools are programs of this machine for the guest, by name or path, with the libraries they
	// need: "ipvsadm", "nft". A missing one is an error.
	Tools []string
	// Memory of the VM in MiB; 0 means [DefaultMemory]. The programs take up twice
	// their size in it while it boots.
	Memory int
	// KernelArgs are added to the kernel's command line, such as "ipv6.disable=1".
	KernelArgs []string
	// BootTimeout limits the time from power-on to init; 0 means [DefaultBootTimeout]. A boot that
	// takes longer is tried once more.
	BootTimeout time.Duration
	// Timeout limits the time of all programs together, from init on; 0 means [DefaultTimeout].
	Timeout time.Duration
	// Output gets the programs' output as they print it; nil drops it.
	Output io.Writer
	// Log gets a record of each download and other slow work; nil means silence.
	Log *slog.Logger
}

// Program is one command for the guest.
type Program struct {
	// Name for people, such as an import path.
	Name string
	// Path is a static executable on this machine.
	Path string
	// Args after the program's name.
	Args []string
	// Dir is its directory in the guest and there the working directory; "" means
	// /root.
	Dir string
	// Env are "name=value" pairs. PATH, HOME, TMPDIR, KERNLB_VM=1, and KERNLB_KERNEL
	// (the series) are set.
	Env []string
	// Files are further files or directories: place in the guest to place here.
	Files map[string]string
}

// Result is the outcome of a run.
type Result struct {
	// Kernel that was booted.
	Kernel Kernel
	// Programs that ran to their end, in order.
	Programs []ProgramResult
	// Boot is the time from the start of QEMU to the guest's init.
	Boot time.Duration
	// Duration is the time from the start of QEMU to its end.
	Duration time.Duration
	// KernelLog is the last 256 KiB that the kernel wrote to its console.
	KernelLog string
}

// ProgramResult is the end of a program.
type ProgramResult struct {
	// Name is the name of the [Program].
	Name string
	// ExitCode, or 128 plus the number of the signal that ended it.
	ExitCode int
	// Duration by the guest's clock.
	Duration time.Duration
	// Tests are counted in its output.
	Tests TestCount
}

// Run boots a kernel and runs programs on it. The error is nil only if all programs ended with exit
// code 0. It wraps [ErrTestsFailed] if a program ended with a different code. Without a verdict, it
// wraps another of this package's sentinels, or ctx's cause. The Result has all known facts in any
// case.
func Run(ctx context.Context, o Options) (Result, error) {
	r, err := FindRelease(o.Kernel)
	if err != nil {
		return Result{}, err
	}
	o = o.withDefaults()
	o.Kernel = r.Name

	// A missing program is reported at once, not after a download.
	if _, err := findProgram(qemuProgram, qemuPackage); err != nil {
		return Result{}, err
	}
	if o.Init, err = findInit(o.Init); err != nil {
		return Result{}, err
	}
	work, err := os.MkdirTemp("", "kernlb-vm-")
	if err != nil {
		return Result{}, fmt.Errorf("prepare the VM: %w", err)
	}
	defer os.RemoveAll(work)
	p, err := o.prepare(ctx, r, work)
	if err != nil {
		return Result{}, err
	}
	initrd, err := o.writeInitrd(ctx, p, r.Modules, work)
	if err != nil {
		return Result{}, err
	}
	return o.bootAgain(ctx, p, initrd)
}

func (o Options) withDefaults() Options {
	o.Memory = cmp.Or(o.Memory, DefaultMemory)
	o.BootTimeout = cmp.Or(o.BootTimeout, DefaultBootTimeout)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	if o.Output == nil {
		o.Output = io.Discard
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// findInit returns the path of the init program: the given path, or the file in the directory of
// this program.
func findInit(path string) (string, error) {
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find the guest's init program: %w", err)
		}
		path = filepath.Join(filepath.Dir(self), "guestinit")
	}

	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: the guest's init program, built from cmd/guestinit: %w",
			ErrMissing, err)
	}

	return path, nil
}

// writeInitrd joins the base image and an archive with the programs. The kernel unpacks consecutive
// archives as one tree.
func (o Options) writeInitrd(ctx context.Context, p prepared, modules []string,
	work string) (initrd string, err error) {
	tree := filepath.Join(work, "tree")
	plan, err := o.addPrograms(tree)
	if err != nil {
		return "", fmt.Errorf("write the initramfs: %w", err)
	}
	plan.Modules = modules
	data, err := json.Marshal(plan)
	if err != nil {
		return "", fmt.Errorf("encode the guest's plan: %w", err)
	}
	if err := write(tree, guest.PlanPath, bytes.NewReader(data), 0o644); err != nil {
		return "", fmt.Errorf("write the initramfs: %w", err)
	}
	initrd = filepath.Join(work, "initrd")
	cmd := exec.CommandContext(ctx, "bash", "-ec", archive, "bash", p.base, tree)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	f, err := os.Create(initrd)
	if err == nil {
		cmd.Stdout = f
		err = errors.Join(cmd.Run(), f.Close())
	}

	if err != nil {
		return "", fmt.Errorf("write the initramfs: %w%s", err, indent(stderr.String()))
	}
	info, err := os.Stat(initrd)
	if err != nil {
		return "", fmt.Errorf("write the initramfs: %w", err)
	}
	if size := info.Size() >> 20; size > int64(o.Memory/initrdShare) {
		return "", fmt.Errorf("an initramfs of %d MiB needs more memory than %d MiB: "+
			"give the VM at least %d", size, o.Memory, (size+1)*initrdShare)
	}

	return initrd, nil
}

// archive writes the base image $1, the device that the kernel gives init as its output, and the
// tree $2. It writes the record of the device itself, because only root can create the device.
const archive = `cat "$1"
printf '070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08xdev/console\0\0\0' \
	1 $((020600)) 0 0 1 0 0 0 0 5 1 12 0
cd "$2"
find . -mindepth 1 | sort | busybox cpio -o -H newc`

// addPrograms puts the programs and their files into a tree.
func (o Options) addPrograms(tree string) (guest.Plan, error) {
	var plan guest.Plan
	if err := copyFile(tree, "/init", o.Init, 0o755); err != nil {
		return plan, err
	}
	for i, p := range o.Programs {
		dir := cmp.Or(p.Dir, "/root")
		at := path.Join(dir, path.Base(cmp.Or(p.Name, filepath.ToSlash(p.Path))))
		if _, err := os.Lstat(inTree(tree, at)); err == nil {
			at = fmt.Sprintf("%s.%d", at, i)
		}
		if err := copyFile(tree, at, p.Path, 0o755); err != nil {
			return plan, err
		}
		for to, from := range p.Files {
			info, err := os.Stat(from)
			switch {
			case err != nil:
			case info.IsDir():
				err = os.CopyFS(inTree(tree, to), os.DirFS(from))
			default:
				err = copyFile(tree, to, from, info.Mode())
			}

			if err != nil && !errors.Is(err, fs.ErrExist) { // another program brought it
				return plan, err
			}
		}

		env := append([]string{"KERNLB_VM=1", "KERNLB_KERNEL=" + o.Kernel}, p.Env...)
		plan.Programs = append(plan.Programs, guest.Program{Path: at, Args: slices.Clone(p.Args),
			Dir: dir, Env: env})
	}

	return plan, nil
}

// inTree returns the path of a guest's file in the tree. As on Debian, /bin, /sbin, /lib and /lib64
// are links into /usr.
func inTree(tree, name string) string {
	name = path.Clean("/" + name)
	if top, _, _ := strings.Cut(name[1:], "/"); slices.Contains(mergedDirs, top) {
		name = "/usr" + name
	}
	return filepath.Join(tree, name)
}

// mergedDirs are the directories that live in /usr.
var mergedDirs = []string{"bin", "sbin", "lib", "lib64"}

// copyFile copies a file of this machine into the tree.
func copyFile(tree, name, from string, perm fs.FileMode) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return write(tree, name, src, perm)
}

// write writes a file of the tree, and creates the directories above it.
func write(tree, name string, from io.Reader, perm fs.FileMode) error {
	name = inTree(tree, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	to, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
