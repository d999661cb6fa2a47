package main

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/test/must"
)

// asTracer makes the test binary a tracer: see tracer. Its value is the file that it writes.
const asTracer = "CNI_TEST_TRACER"

// changing are the system calls with which programs change something. Each such call is a step.
var changing = []uint64{unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_WRITE, unix.SYS_FLOCK,
	unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_EXECVE}

// killedAt wraps a command so that it is killed, with all its children, before the step of that
// number, counted from 1. With 0 it is never killed.
func killedAt(step int, cmd *exec.Cmd) *exec.Cmd {
	cmd.Args = append([]string{"tracer", strconv.Itoa(step)}, cmd.Args...)
	cmd.Path = os.Args[0]
	return cmd
}

// steps returns the number of steps of a command.
func (h *host) steps(cmd *exec.Cmd) int {
	file := h.tb.TempDir() + "/steps"
	cmd = killedAt(0, cmd)
	cmd.Env = append(cmd.Env, asTracer+"="+file)
	must.OK(h.try(cmd))(h.tb)
	text := must.OK(os.ReadFile(file))(h.tb)
	n := must.OK(strconv.Atoi(string(text)))(h.tb)
	require.Greater(h.tb, n, 5)
	return n
}

// kill runs a command and kills it before a step, unless it ends earlier.
func (h *host) kill(step int, cmd *exec.Cmd) {
	cmd = killedAt(step, cmd)
	cmd.Env = append(cmd.Env, asTracer+"=/dev/null")
	_, _ = h.try(cmd)
}

// tracer runs a program up to one of its steps.
type tracer struct {
	step, steps int
	pids        map[int]bool // of threads that have not ended
	first       int
	code        int // exit code of the first process
}

// trace runs a program. The arguments are the number of a step, and the program with its arguments.
func trace(args []string) {
	runtime.LockOSThread() // ptrace accepts requests only from the tracing thread
	t := &tracer{pids: map[int]bool{}}
	var err error
	if t.step, err = strconv.Atoi(args[0]); err == nil {
		err = t.run(args[1:])
	}
	if err == nil {
		err = os.WriteFile(os.Getenv(asTracer), []byte(strconv.Itoa(t.steps)), 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tracer:", err)
		os.Exit(2)
	}

	os.Exit(t.code)
}

func (t *tracer) run(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	p, err := os.StartProcess(path, args, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Ptrace: true}})
	if err != nil {
		return err
	}
	t.first = p.Pid
	var ws unix.WaitStatus
	if _, err = unix.Wait4(p.Pid, &ws, unix.WALL, nil); err != nil {
		return err
	}
	if err = unix.PtraceSetOptions(p.Pid, unix.PTRACE_O_EXITKILL|unix.PTRACE_O_TRACESYSGOOD|
		unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_TRACEFORK|unix.PTRACE_O_TRACEVFORK); err != nil {
		return err
	}

	t.proceed(p.Pid, 0)
	for {
		pid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err == unix.ECHILD: // all have ended
			return nil
		case err != nil:
			return err
		default:
			t.stopped(pid, ws)
		}
	}
}

// stopped handles a thread that has stopped or ended.
func (t *tracer) stopped(pid int, ws unix.WaitStatus) {
	if !ws.Stopped() {
		delete(t.pids, pid)
		if pid == t.first {
			t.code = ws.ExitStatus()
		}
		return
	}

	switch sig := ws.StopSignal(); sig {
	case unix.SIGTRAP | 0x80: // a system call begins or ends
		if t.changes(pid) {
			t.steps++
			if t.steps == t.step {
				t.killAll()
				return
			}
		}

		t.proceed(pid, 0)
	case unix.SIGTRAP, unix.SIGSTOP: // a process or thread begins, or execs
		t.proceed(pid, 0)
	default:
		t.proceed(pid, int(sig))
	}
}

// proceed lets a thread run to its next system call. It ignores a thread that was killed.
func (t *tracer) proceed(pid, signal int) {
	t.pids[pid] = true
	_ = unix.PtraceSyscall(pid, signal)
}

// changes reports whether a thread begins a system call that may change something. It uses
// PTRACE_GET_SYSCALL_INFO (ptrace(2)): the first byte is 1 at the beginning of a call, and the
// call's number is at 24.
func (t *tracer) changes(pid int) bool {
	var info [88]byte
	const getSyscallInfo = 0x420e
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(pid),
		uintptr(len(info)), uintptr(unsafe.Pointer(&info)), 0, 0)
	return errno == 0 && info[0] == 1 &&
		slices.Contains(changing, binary.NativeEndian.Uint64(info[24:]))
}

func (t *tracer) killAll() {
	for pid := range maps.Keys(t.pids) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// A process that is killed between any two of its steps has done everything or nothing, and other
// containers lose nothing. DEL and GC remove the rest.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	t.Parallel()
	ports := []mapping{tcp(8000, 80), tcp(8001, 81), {HostPort: 53, ContainerPort: 53,
		Protocol: "udp", HostIP: "127.0.0.1"}}
	for _, killed := range []string{"ADD", "DEL", "GC"} {
		t.Run(killed, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			c, bystander := h.newContainer("c"), h.newContainer("bystander")
			valid := []object{{"containerID": bystander.Name, "ifname": "eth0"}}
			command := func(name string) *exec.Cmd {
				return h.plugin(name, c, request(ports, object{"cni.dev/valid-attachments": valid}))
			}
			must := func(cmd *exec.Cmd) {
				t.Helper()
				must.OK(h.try(cmd))(t)
			}

			others := request([]mapping{tcp(9000, 90)}, nil)
			must(h.plugin("ADD", bystander, others))
			before := func() {
				if killed != "ADD" {
					must(command("ADD"))
				}
			}

			before()
			n := h.steps(command(killed))
			must(command("DEL"))
			stride := map[string]int{"ADD": 1, "DEL": 1, "GC": 3}[killed] // GC does what DEL does
			if testing.Short() {
				stride = 5
			}
			left := map[bool]int{} // how often everything was left, and how often nothing
			for step := 1; step <= n; step += stride {
				before()
				h.kill(step, command(killed))
				all := len(h.owners()) > 1
				left[all]++
				if all {
					must(command("CHECK"))
				}
				must(h.plugin("CHECK", bystander, others))
				must(command([]string{"DEL", "GC"}[step%2]))
				require.Equal(t, []string{owner("net", bystander.Name, "eth0")}, h.owners())
			}

			t.Logf("%d steps: %d left all, %d nothing", n, left[true], left[false])
			require.True(t, testing.Short() || len(left) == 2)
		})
	}
}

// A chain is killed between two steps of any of its programs. The runtime's DEL and GC remove it,
// and it can be set up again.
func TestChainKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t, network(t, "net", "1.1.0", ours(nil)))
	c := h.newContainer("c", tcp(8000, 80))
	n := h.steps(h.cnitool("add", "net", c))
	h.must("del", "net", c)
	const tries = 12
	for i := range tries {
		h.kill(1+i*n/tries, h.cnitool("add", "net", c))
		h.must("del", "net", c)
		h.must("gc", "net", c)
		require.Empty(t, h.owners())
	}

	h.mustAdd("net", c)
	require.Len(t, h.owners(), 1)
}
