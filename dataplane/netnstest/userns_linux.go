package netnstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/threadns"
)

// envReExecuted marks the copy that [ReExecInUserNS] starts.
const envReExecuted = "KERNLB_NETNSTEST_REEXECUTED"

// ReExecInUserNS runs a copy of this program, if this process may not create network namespaces
// itself. The copy has the same arguments, environment and standard streams. It runs in new user,
// network and mount namespaces, and is root there. If done is true, the copy has finished, and
// exitCode is its exit code (128 plus the signal's number if a signal killed it): exit with that
// code. If done is false, continue: namespaces can be created, or err says why not.
//
// Call it at the start of main. The copy inherits only the standard streams and no other open
// files, so fuzzing in several processes does not work.
func ReExecInUserNS() (done bool, exitCode int, err error) {
	// The copy also checks this, because a system may allow user namespaces without rights in them.
	if os.Getenv(envReExecuted) != "" {
		return false, 0, errors.Join(threadns.OnThread(loopbackUp), usable())
	}
	reason := usable()
	if !errors.Is(reason, os.ErrPermission) {
		return false, 0, reason
	}

	// The copy dies with the thread that started it (prctl(2), PR_SET_PDEATHSIG), so this thread
	// must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := reExecCommand()
	if err := cmd.Start(); err != nil {
		return false, 0, fmt.Errorf("netnstest: run in a new user namespace: %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	go func() {
		for s := range signals {
			cmd.Process.Signal(s) //nolint:errcheck // it has just ended
		}
	}()

	waitErr := cmd.Wait()
	signal.Stop(signals)
	close(signals)
	if cmd.ProcessState == nil {
		return false, 0, fmt.Errorf("netnstest: wait for the copy in the user namespace: %w",
			waitErr)
	}

	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return true, 128 + int(status.Signal()), nil
	}
	return true, cmd.ProcessState.ExitCode(), nil
}

// reExecCommand is the command that runs this program again as root of new namespaces.
func reExecCommand() *exec.Cmd {
	return &exec.Cmd{
		Path:   "/proc/self/exe",
		Args:   os.Args,
		Env:    append(os.Environ(), envReExecuted+"=1"),
		Stdin:  os.Stdin,
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			Pdeathsig:   unix.SIGKILL,
		},
	}
}
