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

// commands are the commands of the program. serve is for the processes that the program starts.
var commands = map[string]func(ctx context.Context, args []string, out io.Writer) error{
	"compare": compareCommand, "handover": handoverCommand, "vm": vmCommand, "serve": serveCommand,
	"measure": measureCommand, "plot": plotCommand,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	if len(args) == 0 || commands[args[0]] == nil {
		fmt.Fprintln(os.Stderr,
			"usage: peers measure|plot|compare|handover|vm [flags] [PEER …]; see the "+
				"package's documentation")
		return 2
	}

	err := commands[args[0]](ctx, args[1:], os.Stdout)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	default:
		fmt.Fprintf(os.Stderr, "peers %s: %v\n", args[0], err)
		return 1
	}
}
