// Kernlb is the library as a program: it makes the network namespace it is started in balance the
// services of Kubernetes manifests.
//
//	kernlb apply   -f FILE …   makes the kernel hold exactly these services
//	kernlb watch   -f DIR      keeps the kernel equal to a directory of manifests
//	kernlb plan    -f FILE …   prints what apply would change, and touches nothing
//	kernlb show                prints what the kernel holds now
//	kernlb cleanup             removes every trace; with -of kube-proxy, what that left
//	kernlb probe               prints which backends this kernel supports, and why not the others
//	kernlb trace   -from IP -to IP:PORT/PROTOCOL
//	                           says step by step what happens to a packet, and why
//	kernlb explain NAMESPACE/NAME
//	                           says all that is known of a service
//	kernlb top                 shows live what services do, in the terminal
//	kernlb count               switches counters of frontends and endpoints on, or with -off off
//	kernlb graph               draws services, or the way of a packet through the chains of all
//	                           programs
//	kernlb flows               prints the flows of services
//	kernlb tune                sets the limits and timeouts of conntrack
//	kernlb bench               measures the library in a namespace of its own
//
// Run "kernlb -h" for the flags. The exit code is 0 when done, 1 when something failed, and 2 for
// wrong usage or invalid input, in which case every problem was printed and the kernel was not
// touched. With -keep-going, services that are invalid or that the backend refuses are left out and
// printed, everything else is done, and the exit code is 1. Warnings are printed last.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/kernlb/kernlb/dataplane"
)

// Exit codes.
const (
	exitDone    = 0
	exitFailed  = 1
	exitInvalid = 2
)

var (
	// errInvalid marks wrong usage and invalid input.
	errInvalid = errors.New("invalid input")
	// errIncomplete says that something was left out. The rest was done.
	errIncomplete = errors.New("done, but for what was refused: see above")
)

// program is one run: where it reads and prints, and what it was told.
type program struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	opts   options
	keeper dataplane.Flows      // of the engines; nil: flows are left alone
	node   dataplane.NodeSource // of the engines; nil: manifests and flags say all of the node
	log    *slog.Logger         // of the engines; nil: what they do is printed, not logged
	// warnings are printed at the end, where they are seen.
	warnings []string
	// incomplete says that -keep-going left something out.
	incomplete bool
}

// commands are the commands by name.
var commands = map[string]func(*program, context.Context) error{
	"apply":   (*program).apply,
	"watch":   (*program).watch,
	"plan":    (*program).plan,
	"show":    (*program).show,
	"cleanup": (*program).cleanup,
	"probe":   (*program).probe,
	"bench":   (*program).bench,
	"flows":   (*program).flows,
	"tune":    (*program).tune,
	"trace":   (*program).trace,
	"explain": (*program).explain,
	"count":   (*program).count,
	"graph":   (*program).graph,
	"top":     (*program).top,
}

// warn keeps a line for the end.
func (p *program) warn(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	code := p.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs a command line and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	name, err := p.opts.parse(args, p.stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		fmt.Fprintf(p.stderr, "kernlb: %v\n", err)
		return exitInvalid
	}
	err = commands[name](p, ctx)
	for _, w := range p.warnings {
		fmt.Fprintln(p.stderr, w)
	}
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errInvalid):
		fmt.Fprintf(p.stderr, "kernlb %s: nothing was changed: %v\n", name, err)
		return exitInvalid
	}
	fmt.Fprintf(p.stderr, "kernlb %s: %v\n", name, err)
	return exitFailed
}
