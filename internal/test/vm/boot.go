package vmtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// haltTimeout is the time that a guest may take to power off, and a panicking guest to reboot.
const haltTimeout = 30 * time.Second

// errBootTimeout is the [ErrTimeout] of a machine that did not reach init.
var errBootTimeout = fmt.Errorf("%w: init did not start", ErrTimeout)

// bootAgain is boot, with a second try if the first is inconclusive.
func (o Options) bootAgain(ctx context.Context, p prepared, initrd string) (Result, error) {
	result, err := o.boot(ctx, p, initrd)
	if inconclusive(&result, err) {
		o.Log.Warn("the emulated machine failed; booting once more", "kernel", p.kernel.Release,
			"reason", err)
		result, err = o.boot(ctx, p, initrd)
	}

	return result, err
}

// inconclusive reports whether the emulation must have ended the machine, not a program. This is so
// if the kernel hung or panicked before init, when no program had run. It is also so if the kernel
// executed a breakpoint of its own while it patched its code, as emulated machines with two
// processors sometimes do (text_poke_bp in arch/x86/kernel/alternative.c: the other processor
// should find either the breakpoint's handler or the new code).
func inconclusive(r *Result, err error) bool {
	switch {
	case errors.Is(err, errBootTimeout):
		return true
	case errors.Is(err, ErrPanic):
		return r.Boot == 0 || strings.Contains(r.KernelLog, "Oops: int3:")
	}

	return false
}

// boot runs the VM and judges the outcome.
func (o Options) boot(ctx context.Context, p prepared, initrd string) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)

	// Each phase of the VM's life has a limit, which replaces the limit of the previous phase.
	var running atomic.Pointer[time.Timer]
	phase := func(limit time.Duration, err error) {
		if last := running.Swap(time.AfterFunc(limit, func() { cancel(err) })); last != nil {
			last.Stop()
		}
	}

	log := &console{onPanic: func() { phase(haltTimeout, ErrPanic) }}
	s := &session{
		output: o.Output, started: time.Now(),
		onReady: func() {
			phase(o.Timeout, fmt.Errorf("%w: the programs were not done in %v", ErrTimeout,
				o.Timeout))
		},
		onDone: func() {
			phase(haltTimeout, fmt.Errorf("%w: it did not power off in %v", ErrTimeout,
				haltTimeout))
		},
	}
	for _, program := range o.Programs {
		s.names = append(s.names, program.Name)
	}
	phase(o.BootTimeout, fmt.Errorf("%w in %v", errBootTimeout, o.BootTimeout))
	m := machine{kernel: p.vmlinuz, initrd: initrd, memoryMiB: o.Memory, kernelArgs: o.KernelArgs}
	err := m.start(ctx, log, s.follow)
	limit := context.Cause(ctx)
	running.Load().Stop()
	cancel(nil)
	return Result{
		Kernel: p.kernel, Programs: s.programs, Boot: s.boot,
		Duration: time.Since(s.started), KernelLog: log.text(),
	}, judge(limit, err, log, s)
}

// judge turns the end of a VM into Run's error. A panic explains everything else,
// and a limit that was reached explains how QEMU ended.
func judge(limit, ended error, log *console, s *session) error {
	switch {
	case log.sawPanic():
		return fmt.Errorf("%w:%s", ErrPanic, tail(log.text(), 40))
	case limit != nil:
		return fmt.Errorf("run the VM: %w%s", limit, tail(log.text(), 20))
	case errors.Is(ended, ErrMissing):
		return ended
	case ended != nil:
		return fmt.Errorf("%w: %w%s", ErrNoVerdict, ended, tail(log.text(), 20))
	case !s.done || len(s.programs) < len(s.names):
		return fmt.Errorf("%w: it stopped after %d of %d programs%s",
			ErrNoVerdict, len(s.programs), len(s.names), tail(log.text(), 20))
	}

	var failed []string
	for _, p := range s.programs {
		if p.ExitCode != 0 {
			failed = append(failed, fmt.Sprintf("%s (exit code %d)", p.Name, p.ExitCode))
		}
	}

	if len(failed) > 0 {
		return fmt.Errorf("%w: %v", ErrTestsFailed, failed)
	}
	return nil
}
