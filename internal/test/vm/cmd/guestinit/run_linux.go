package main

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/internal/test/vm/guest"
)

// baseEnv is the environment of every program, before its own variables.
var baseEnv = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root", "TMPDIR=/tmp", "USER=root",
}

// run runs one program to its end and sends its output. All processes it left
// behind are killed, so that the next one starts on a quiet machine.
func run(p guest.Program, out *gob.Encoder) (guest.Exit, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return guest.Exit{}, fmt.Errorf("make the output pipe: %w", err)
	}
	defer r.Close()
	start := time.Now()
	pid, err := fork(p, w)
	w.Close()
	if err != nil {
		return guest.Exit{}, err
	}
	copied := make(chan error, 1)
	go func() { copied <- send(r, out) }()
	code, err := reapUntil(pid)
	if err != nil {
		return guest.Exit{}, err
	}
	taken := time.Since(start)

	// Orphans hold the pipe's other end open: without them, send sees its end.
	_ = syscall.Kill(-1, syscall.SIGKILL)
	if err := <-copied; err != nil {
		return guest.Exit{}, err
	}
	return guest.Exit{Code: code, Duration: taken}, nil
}

func fork(p guest.Program, output *os.File) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, fmt.Errorf("open the program's input: %w", err)
	}
	defer null.Close()
	argv := append([]string{p.Path}, p.Args...)
	pid, err := syscall.ForkExec(p.Path, argv, &syscall.ProcAttr{
		Dir:   p.Dir,
		Env:   append(append([]string{}, baseEnv...), p.Env...),
		Files: []uintptr{null.Fd(), output.Fd(), output.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start in %s: %w", p.Dir, err)
	}
	return pid, nil
}

// reapUntil waits for every child, as process 1 has to, until the given one has
// ended, and returns its exit code.
func reapUntil(pid int) (int, error) {
	for {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the program: %w", err)
		case got != pid:
		case ws.Signaled():
			return 128 + int(ws.Signal()), nil
		case ws.Exited():
			return ws.ExitStatus(), nil
		}
	}
}

func send(r io.Reader, out *gob.Encoder) error {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := out.Encode(guest.Message{Output: buf[:n]}); err != nil {
				return err
			}
		}

		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the program's output: %w", err)
		}
	}
}
