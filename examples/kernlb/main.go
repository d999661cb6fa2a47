// Kernlb is the library as a program: it makes its network namespace balance the services of
// Kubernetes manifests.
//
//	kernlb apply -f services.yaml    makes the kernel hold exactly these services
//	kernlb show                      prints what the kernel holds now
//	kernlb cleanup                   removes every trace
//
// "kernlb -h" lists all commands, and "kernlb COMMAND -h" the flags of one, with an example. The
// exit code is 0 for success, 1 for a failure, and 2 for wrong usage or invalid input. With code 2
// the program has printed every problem, and has not touched the kernel. With -keep-going, apply
// and plan leave out services that are invalid or that the backend refuses. They print these
// services, do everything else, and exit with code 1. Warnings are printed last. Code 3 is for
// status alone: the kernel is in sync, and clients cannot use some of the services. So is
// code 4: the services are as they should be, and this node loses connections of clients. Code 5 is
// for diagnose and trace -until-lost, which found something wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes.
const (
	exitDone       = 0
	exitFailed     = 1
	exitInvalid    = 2
	exitNotServing = 3
	exitNode       = 4
	exitFault      = 5
)

var (
	// errInvalid marks wrong usage and invalid input.
	errInvalid = errors.New("invalid input")
	// errIncomplete says that some objects were left out. The rest was done.
	errIncomplete = errors.New("done, except for what was refused: see above")
)

// program is one run: its input and output, and its flags.
type program struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	opts   options
	// warnings are printed at the end, where users see them.
	warnings []string
	// incomplete says that -keep-going left out an object.
	incomplete bool
}

// warn keeps a line for the end.
func (p *program) warn(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends a program that waits for its input
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	code := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs a command line and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	c, err := parse(&p.opts, args, p.stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		fmt.Fprintf(p.stderr, "kernlb: %v\n", err)
		return exitInvalid
	}

	err = c.run(p, ctx)
	for _, w := range p.warnings {
		fmt.Fprintln(p.stderr, w)
	}
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errInvalid):
		fmt.Fprintf(p.stderr, "kernlb %s: nothing was changed: %v\n", c.name, err)
		return exitInvalid
	}

	fmt.Fprintf(p.stderr, "kernlb %s: %v\n", c.name, err)
	switch {
	case errors.Is(err, errNotServing):
		return exitNotServing
	case errors.Is(err, errNode):
		return exitNode
	case errors.Is(err, errFault):
		return exitFault
	}

	return exitFailed
}
