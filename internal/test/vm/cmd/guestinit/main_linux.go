// Command guestinit is process 1 of the virtual machines that package vmtest
// boots: it mounts what tests expect, runs the programs of its plan, reports to
// the host and powers off.
//
// It is a Go program and not a shell script because it must reap orphans, keep a
// binary protocol, and report every one of its own failures to the host.
package main

import (
	"encoding/gob"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/test/vm/guest"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr,
			"guestinit: this is the init program of a test VM; it runs as process 1 only")
		os.Exit(1)
	}

	// An init that ends makes the kernel panic, and that panic would hide why.
	defer powerOff()
	if err := boot(); err != nil {
		fmt.Fprintln(os.Stderr, "guestinit:", err)
	}
}

// boot is the whole life of the machine. It does not return an error that it could report to the
// host.
func boot() error {
	if err := mountAll(); err != nil {
		return err
	}
	port, err := openPort(guest.Port)
	if err != nil {
		return err
	}

	// Whatever is still in the port's buffer would be lost at power-off.
	defer drain(port)
	out := gob.NewEncoder(port)
	defer func() {
		if r := recover(); r != nil {
			_ = out.Encode(guest.Message{Fatal: fmt.Sprintf("panic: %v\n%s", r, debug.Stack())})
		}
	}()

	if err := work(out); err != nil {
		return out.Encode(guest.Message{Fatal: err.Error()})
	}
	return out.Encode(guest.Message{Done: true})
}

func work(out *gob.Encoder) error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	release := unix.ByteSliceToString(uts.Release[:])
	if err := out.Encode(guest.Message{Ready: release}); err != nil {
		return err
	}
	if err := prepare(); err != nil {
		return err
	}
	var plan guest.Plan
	data, err := os.ReadFile(guest.PlanPath)
	if err == nil {
		err = json.Unmarshal(data, &plan)
	}
	if err != nil {
		return fmt.Errorf("read the plan %s: %w", guest.PlanPath, err)
	}
	for _, m := range plan.Modules {
		if text, err := exec.Command("/sbin/modprobe", m).CombinedOutput(); err != nil {
			return fmt.Errorf("modprobe %s: %w: %s", m, err, strings.TrimSpace(string(text)))
		}
	}

	for _, p := range plan.Programs {
		exit, err := run(p, out)
		if err != nil {
			return fmt.Errorf("run %s: %w", p.Path, err)
		}
		if err := out.Encode(guest.Message{Exit: &exit}); err != nil {
			return err
		}
	}

	return nil
}

func powerOff() {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "guestinit: power off:", err)
	}
	select {}
}
