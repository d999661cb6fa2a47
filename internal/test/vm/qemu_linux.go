package vmtest

import (
	"os/exec"
	"syscall"
)

// endWithParent lets the kernel kill the command when the thread that starts it
// ends, prctl(2) PR_SET_PDEATHSIG, so that no VM outlives a runner that was killed.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
