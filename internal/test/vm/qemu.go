package vmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	qemuProgram = "qemu-system-x86_64"
	qemuPackage = "qemu-system-x86"
)

// machine is a virtual machine to start.
type machine struct {
	kernel, initrd string
	memoryMiB      int
	kernelArgs     []string // beside those of all machines
}

// kernelArgs is the kernel's command line. A panic must end QEMU at once: panic=-1 reboots without
// waiting, and -no-reboot makes QEMU exit then. An oops is a panic, so that no test passes on a
// broken kernel. The last line turns off work that a test VM does not need, which takes a fifth of
// the boot time under emulation.
var kernelArgs = []string{
	"console=ttyS0", "quiet", "rdinit=/init", "panic=-1", "oops=panic",
	"mitigations=off", "nokaslr", "cryptomgr.notests", "no_timer_check",
}

// args is QEMU's command line. The serial ports go to the file descriptors 3 (the
// kernel's messages) and 4 (the messages). The processor is an old one on purpose:
// with "max", 6.12 panics in AVX code that QEMU 7.2 emulates wrongly.
func (m machine) args() []string {
	return []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "q35,accel=tcg", "-cpu", "Nehalem",
		"-m", strconv.Itoa(m.memoryMiB), "-smp", "2",
		"-chardev", "file,id=log,path=/dev/fd/3", "-serial", "chardev:log",
		"-chardev", "file,id=messages,path=/dev/fd/4", "-serial", "chardev:messages",
		"-kernel", m.kernel, "-initrd", m.initrd,
		"-append", strings.Join(slices.Concat(kernelArgs, m.kernelArgs), " "),
	}
}

// start runs the machine to its end. It copies the console to log and the messages to follow. An
// error of follow ends the machine. start returns follow's error, or else QEMU's.
func (m machine) start(ctx context.Context, log io.Writer, follow func(io.Reader) error) error {
	path, err := findProgram(qemuProgram, qemuPackage)
	if err != nil {
		return err
	}
	logR, logW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", qemuProgram, err)
	}
	defer logR.Close()
	messagesR, messagesW, err := os.Pipe()
	if err != nil {
		logW.Close()
		return fmt.Errorf("start %s: %w", qemuProgram, err)
	}

	defer messagesR.Close()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, m.args()...)
	cmd.Stderr = &stderr
	cmd.ExtraFiles = []*os.File{logW, messagesW}
	cmd.WaitDelay = 5 * time.Second

	var readers sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(log, logR) })
	var followErr error
	readers.Go(func() {
		if followErr = follow(messagesR); followErr != nil {
			stop()
		}

		// QEMU must not stay blocked on a full pipe.
		_, _ = io.Copy(io.Discard, messagesR)
	})

	err = runToEnd(cmd, logW, messagesW)
	readers.Wait()
	if followErr != nil {
		return followErr
	}
	if err != nil {
		return fmt.Errorf("%s: %w%s", qemuProgram, err, indent(stderr.String()))
	}
	return nil
}

// runToEnd starts a command, closes our ends of the given files, and waits. It keeps one thread for
// that: see endWithParent.
func runToEnd(cmd *exec.Cmd, given ...*os.File) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		endWithParent(cmd)
		err := cmd.Start()
		for _, f := range given {
			err = errors.Join(err, f.Close())
		}
		if cmd.Process != nil {
			err = errors.Join(err, cmd.Wait())
		}
		result <- err
	}()

	return <-result
}
